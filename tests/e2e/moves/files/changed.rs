//! Immutable files that are changed all the same, during their load or later, and the requests that meet the change.

use std::{fs::File, path::Path, thread};

use vramd_client::{Access, Client, Error, Sealed};
use vramd_proto::v1::AllocationState;
use vramd_tests::{Config, Daemon, MIB, MIB_2, config::Effect, digest, proc::fds_by_kind, wait::until};

use crate::moves::{
    assert_nothing_left,
    disk::tier::is_lost,
    files::load::{HEADER, Models, change, is_intact, load, node, request},
    pins::fetch::connect,
    vramctl_json,
};

/// A load opens its file and does not read it yet.
fn held(models: &Models) -> Config {
    node("16MiB", models).fault("digest", 1, Effect::Hold)
}

/// The result of a load whose file was changed so before the daemon read it.
fn loaded_while(
    daemon: &Daemon,
    client: &Client,
    path: &Path,
    meddle: impl FnOnce(),
) -> Result<Sealed, Error> {
    thread::scope(|scope| {
        let loading = scope.spawn(|| load(client, path));
        until("it is open, and about to be read", || {
            daemon.state().allocations.iter().any(|it| it.state() == AllocationState::Sealing)
        });
        meddle();
        daemon.end_holds();
        loading.join().unwrap()
    })
}

#[test]
fn a_file_truncated_during_its_load_is_refused_and_leaves_nothing() {
    let models = Models::new();
    let (path, _) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&held(&models));
    let client = connect(&daemon);
    let cut_off = || File::options().write(true).open(&path).unwrap().set_len(HEADER + MIB_2).unwrap();
    let lost = loaded_while(&daemon, &client, &path, cut_off).map(drop).expect_err("it is lost");
    assert!(matches!(lost, Error::ContentLost { part_index: 1, .. }), "{lost:?}");
    assert_nothing_left(&daemon);
    let file = path.to_str().unwrap();
    until("the daemon has closed it", || fds_by_kind(daemon.pid()).keys().all(|kind| kind != file));
    // The next load succeeds.
    let (path, weights) = models.model("llama", MIB_2);
    is_intact(&load(&client, &path).unwrap(), &weights);
}

/// The first chunk has been copied by then.
#[test]
fn a_file_truncated_during_its_copy_is_refused_and_leaves_nothing() {
    let models = Models::new();
    let (path, _) = models.model("llama", 6 * MIB_2);
    let elsewhere = Models::new();
    let daemon = Daemon::start(&node("16MiB", &elsewhere).fault("create", 1, Effect::Hold));
    let client = connect(&daemon);
    let lost = thread::scope(|scope| {
        let loading = scope.spawn(|| load(&client, &path).map(drop));
        until("it is open, and about to be copied", || !daemon.state().allocations.is_empty());
        File::options().write(true).open(&path).unwrap().set_len(HEADER + 9 * MIB).unwrap();
        daemon.end_holds();
        loading.join().unwrap().expect_err("it is lost")
    });
    let says = format!("{}: the file was cut off while it was copied", path.display());
    assert!(matches!(&lost, Error::FileInvalid { problem, .. } if *problem == says), "{lost:?}");
    client.flush().unwrap();
    assert_nothing_left(&daemon);
    let (path, weights) = models.model("llama", 6 * MIB_2);
    is_intact(&load(&client, &path).unwrap(), &weights);
}

/// The allocation has the bytes that were read, and no other bytes are ever served.
#[test]
fn a_file_changed_before_it_is_read_loads_as_changed() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&held(&models));
    let client = connect(&daemon);
    let sealed = loaded_while(&daemon, &client, &path, || change(&path, 1)).unwrap();
    let now = std::fs::read(&path).unwrap().split_off(usize::try_from(HEADER).unwrap());
    assert_ne!(now, weights);
    assert_eq!(sealed.digest(), digest(&now));
    is_intact(&sealed, &now);
}

#[test]
fn an_attach_of_a_changed_file_is_refused_at_once() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let [owner, reader] = [connect(&daemon), connect(&daemon)];
    let sealed = owner.load(&path, HEADER, request().unpinned()).unwrap();
    change(&path, 1);
    // An attach that waited until its deadline would report that.
    let id = sealed.id();
    let lost = reader.attach(id).map(drop).expect_err("it is lost");
    assert!(is_lost(&lost, id.get(), 1), "{lost:?}");
    let unheld = reader.attach_unpinned(id).expect("the rest is there");
    let whole = unheld.pin_parts(0..1, Access::Read).expect("it is whole");
    assert!(whole.as_slice().unwrap() == &weights[..2 << 20]);
    drop((whole, unheld, sealed, owner, reader));
    assert_nothing_left(&daemon);
}

#[test]
fn an_operators_fetch_of_a_changed_file_names_the_part() {
    let models = Models::new();
    let (path, _) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let client = connect(&daemon);
    let sealed = load(&client, &path).unwrap();
    change(&path, 1);
    let told = vramctl_json(&daemon, &["alloc", "bring-in", &sealed.id().to_string()]);
    let parts = told["parts"].as_array().unwrap();
    let outcomes: Vec<_> = parts.iter().map(|part| part["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["moved", "refused", "moved"], "{told}");
    let error = &parts[1]["error"];
    assert_eq!(
        (&error["reason"], &error["facts"]["part_index"]),
        (&"CONTENT_LOST".into(), &"1".into()),
        "{told}"
    );
    drop((sealed, client));
    assert_nothing_left(&daemon);
}
