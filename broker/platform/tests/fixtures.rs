//! Recorded readings of nodes, each with the diagnosis that the crate makes of it.
//!
//! `source` in each file says which values were read on a machine and which are from documents. `VRAMD_BLESS=1`
//! writes the diagnoses anew.

use std::{env, fs, path::Path};

use broker_platform::{
    Finding, Platform, Readings, diagnose, platform,
    readings::{DaemonReadings, DeviceReadings, MemoryReadings, ProcessReadings},
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

fn readings(name: &str) -> Readings {
    let text = fs::read_to_string(Path::new(FIXTURES).join(format!("{name}.json"))).unwrap();
    Readings::from_json(&text).unwrap_or_else(|problem| panic!("{name}: {problem}"))
}

fn names() -> Vec<String> {
    let files =
        fs::read_dir(FIXTURES).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.strip_suffix(".json")?.to_owned())).collect();
    names.sort();
    names
}

#[test]
fn each_recorded_node_has_its_platform() {
    let should = [
        ("gb10", Platform::OnePool),
        ("gb200-numa-kubernetes", Platform::CoherentNuma),
        ("gh200-cdmm", Platform::CoherentCdmm),
        ("gh200-numa", Platform::CoherentNuma),
        ("h100-x86", Platform::Discrete),
        ("h100-x86-eight-few-files", Platform::Discrete),
        ("h200-x86", Platform::Discrete),
        ("h200-x86-without-daemon", Platform::Discrete),
        ("hmm-desktop", Platform::Hmm),
        ("hmm-desktop-without-daemon", Platform::Discrete),
        ("no-gpu", Platform::NoGpu),
    ];
    let detected: Vec<_> =
        names().into_iter().map(|name| (platform(&readings(&name)).platform, name)).collect();
    let detected: Vec<_> = detected.iter().map(|(platform, name)| (&**name, *platform)).collect();
    assert_eq!(detected, should);
}

/// A driver that is not asked leaves only the kernel's files, which tell the same platform apart from HMM.
#[test]
fn the_kernel_alone_tells_the_same_platform() {
    for name in names().into_iter().filter(|name| !name.starts_with("hmm")) {
        let asked = readings(&name);
        let unasked = Readings { devices: None, ..asked.clone() };
        assert_eq!(platform(&unasked).platform, platform(&asked).platform, "{name}");
    }
}

#[test]
fn each_diagnosis_is_as_recorded() {
    let mut differ = Vec::new();
    for name in names() {
        let is = diagnose(&readings(&name)).to_string();
        assert!(is.lines().all(|line| line.len() <= 160), "{name} has a long line:\n{is}");
        let file = Path::new(FIXTURES).join(format!("{name}.txt"));
        if env::var_os("VRAMD_BLESS").is_some() {
            fs::write(&file, &is).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != is {
            differ.push(format!("{name} is now:\n{is}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// A daemon that simulates a device beside the readings of a node without a GPU.
fn simulated(platform: Platform) -> Readings {
    let device = DeviceReadings::simulated("GPU-1".to_owned(), "Simulated".to_owned(), 1 << 34, platform);
    let daemon = DaemonReadings {
        driver: "sim".to_owned(),
        device_bytes: vec![1 << 34],
        host_bytes: 1 << 32,
        words_per_session_max: 65_536,
        ..DaemonReadings::default()
    };
    Readings { devices: Some(vec![device]), daemon: Some(daemon), ..readings("no-gpu") }
}

#[test]
fn a_node_without_a_gpu_is_the_same_with_and_without_a_daemon() {
    let alone = diagnose(&readings("no-gpu"));
    for plays in [Platform::Discrete, Platform::OnePool, Platform::CoherentCdmm] {
        let beside = diagnose(&simulated(plays));
        assert_eq!((beside.detected.platform, beside.detected.node), (plays, Some(Platform::NoGpu)));
        let (text, first) = (beside.to_string(), alone.to_string());
        let node = |text: &str| text.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(node(&text), node(&first), "{text}");
        assert!(text.contains(&format!("  simulated by vramd: {plays}\n")), "{text}");
        assert!(text.contains("no GPU is served"), "{text}");
        let about = |limits: &[Finding]| limits.iter().map(|limit| limit.about).collect::<Vec<_>>();
        let no_swap = Readings {
            memory: MemoryReadings { swap_bytes: Some(0), ..simulated(plays).memory },
            ..simulated(plays)
        };
        assert!(!about(&diagnose(&no_swap).limits).contains(&"swap"), "no memory of it is pinned");
    }
}

#[test]
fn a_user_namespace_is_not_advised_what_a_cgroup_namespace_refuses() {
    let in_namespaces = |own: &[&str]| {
        let asked = readings("no-gpu");
        let own_namespaces = own.iter().map(|kind| (*kind).to_owned()).collect();
        let process = ProcessReadings { own_namespaces, ..asked.process.clone() };
        let limits = diagnose(&Readings { process, ..asked }).limits;
        let is_of_users = |limit: &&Finding| limit.text.contains("own user namespace");
        limits.iter().find(is_of_users).map(|limit| limit.set.clone()).unwrap()
    };
    assert_eq!(in_namespaces(&["user"]), "rules by cgroup, or no user namespace");
    assert_eq!(in_namespaces(&["cgroup", "user"]), "no user namespace");
}

#[test]
fn a_node_with_few_mappings_is_told_how_many_it_needs() {
    let with = |max_map_count, words_per_session_max| {
        let daemon = DaemonReadings { words_per_session_max, ..DaemonReadings::default() };
        let all = Readings { max_map_count, daemon: Some(daemon), ..readings("h200-x86") };
        let limits = diagnose(&all).limits.into_iter();
        limits.filter(|limit| limit.about == "mappings").map(|limit| (limit.text, limit.set)).next()
    };
    let (text, set) = with(Some(16_384), 65_536).unwrap();
    assert!(text.starts_with("vm.max_map_count is 16384: a client can map "), "{text}");
    assert_eq!(set, "sysctl vm.max_map_count=131072");
    // The setting that it names is enough. The usual one is enough for the default.
    for count in [Some(131_072), Some(65_530), None] {
        assert_eq!(with(count, 65_536), None, "{count:?}");
    }
    let (text, set) = with(Some(65_530), 1_000_000).unwrap();
    assert!(text.ends_with("fewer than limits.words_per_session_max = 1000000"), "{text}");
    assert_eq!(set, "sysctl vm.max_map_count=1048576");
}
