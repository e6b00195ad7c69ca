//! The kernel's word about files: one on fs-verity never changes, any other may.

use std::{fs, path::Path, process::Command};

use vramd_tests::{Config, Daemon, Home, MIB_2, RawSession, content, digest};
use vramd_types::Reason;

use crate::can_mount;
use crate::moves::{
    assert_nothing_left,
    files::load::{HEADER, Models, is_intact, load, number, raw},
    pins::fetch::connect,
};

fn config() -> Config {
    Config::devices(&["16MiB"]).verity()
}

#[test]
fn an_ordinary_file_is_mutable_if_only_verity_counts() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 2 * MIB_2);
    let daemon = Daemon::start(&config());
    let session = RawSession::open(&daemon.sockets());
    let file = fs::File::open(&path).unwrap();
    let told = session.memory.load_file(raw(&session, number(&file), HEADER, 0)).refused();
    assert_eq!(told.is(Reason::FileMutable).facts["path"], path.display().to_string(), "it was looked at");
    let client = connect(&daemon);
    let copied = load(&client, &path).unwrap();
    assert_eq!((copied.digest(), copied.info().file.clone()), (&*digest(&weights), None));
    drop((copied, client, session));
    assert_nothing_left(&daemon);
}

/// Mounts a small file system with fs-verity.
fn mounts(image: &Path, there: &Path) -> String {
    let (image, there) = (image.display(), there.display());
    format!(
        "truncate -s 64M '{image}' && mkfs.ext4 -q -b 4096 -O verity '{image}' && mount -o loop '{image}' '{there}'"
    )
}

/// FS_IOC_ENABLE_VERITY: version 1, SHA-256, blocks of 4 KiB, neither salt nor signature.
fn enable_verity(path: &Path) {
    let call = "import fcntl, struct, sys
asked = struct.pack('=4IQ2IQ88x', 1, 1, 4096, 0, 0, 0, 0, 0)
fcntl.ioctl(open(sys.argv[1], 'rb'), 0x40806685, asked)";
    let enabled = Command::new("python3").args(["-c", call]).arg(path).status().unwrap();
    assert!(enabled.success(), "{}", path.display());
}

#[test]
fn a_verity_file_is_loaded_in_place_from_any_path() {
    let name = "a_verity_file_is_loaded_in_place_from_any_path";
    if !Path::new("/sys/fs/ext4/features/verity").exists() {
        return eprintln!(
            "{name}: needs a kernel with fs-verity (CONFIG_FS_VERITY); not checked in this run"
        );
    }
    let tried = Path::new("/tmp/verity-of-e2e");
    let line =
        format!("{}; status=$?; rm -f {}; exit $status", mounts(tried, Path::new("/mnt")), tried.display());
    if !can_mount(name, &line) {
        return;
    }
    let home = Home::new();
    let (image, there) = (home.path().join("image"), home.path().join("verity"));
    fs::create_dir(&there).unwrap();
    config().write(home.path());
    let daemon = Daemon::start_in(home.with_mounts(mounts(&image, &there)));
    // The daemon alone sees this mount.
    let seen =
        Path::new("/proc").join(daemon.pid().to_string()).join("root").join(there.strip_prefix("/").unwrap());
    let weights = content(2 * MIB_2, 7);
    for file in ["llama", "mutable"] {
        let header = vec![0xee; usize::try_from(HEADER).unwrap()];
        fs::write(seen.join(file), [&header, &weights[..]].concat()).unwrap();
    }
    enable_verity(&seen.join("llama"));
    let client = connect(&daemon);
    let sealed = load(&client, &seen.join("llama")).unwrap();
    assert_eq!(
        (sealed.digest(), sealed.info().file.as_deref()),
        (&*digest(&weights), there.join("llama").to_str())
    );
    is_intact(&sealed, &weights);
    let copied = load(&client, &seen.join("mutable")).unwrap();
    assert_eq!((copied.digest(), copied.info().file.clone()), (&*digest(&weights), None));
    drop((sealed, copied, client));
    assert_nothing_left(&daemon);
}
