//! The node of host memory, and the CPUs of threads that touch it: on a node that this machine may not have.

use rustix::thread::{CpuSet, sched_getaffinity};
use vramd_types::{CopyId, HostNode};

use super::*;
use crate::CopyClass;

const NODE: HostNode = HostNode(1);

/// The last CPU that this process may run on. With only one, all threads are there anyway.
fn last_cpu() -> usize {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).unwrap()
}

#[test]
fn host_memory_and_its_threads_are_on_the_nearest_node() {
    let fake = Fake::new().with("note = 1").with("attribute.134 = 1");
    let nodes = tempfile::tempdir().unwrap();
    let near = last_cpu().to_string();
    std::fs::create_dir(nodes.path().join("node1")).unwrap();
    std::fs::write(nodes.path().join("node1/cpulist"), format!("{near}\n")).unwrap();
    let config = CudaConfig { nodes: Some(nodes.path().to_owned()), ..config(&fake) };
    let (driver, completions) = opened_with(config);
    let driver = driver.unwrap();
    assert_eq!(driver.host_node(FIRST), NODE);

    let [device, host] = [1, 2].map(ExtentId::from_raw);
    driver.submit(create(1, ExtentKind::Movable));
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    driver.submit(Submission::CreateHost { extent: host, node: NODE, size: GRANULARITY, zeroed: true });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
    for (copy, from, to) in [(1, device, host), (2, host, device)] {
        driver.submit(Submission::Copy {
            copy: CopyId::from_raw(copy),
            from,
            to,
            size: GRANULARITY,
            class: CopyClass::Demand,
        });
        assert!(matches!(next(&completions), Completion::Copied { result: Ok(()), .. }));
    }

    assert_eq!((fake.calls("cuMemCreate(host:1)").len(), fake.calls("cuMemCreate(host:0)").len()), (1, 0));
    for (function, thread) in [
        ("cuMemCreate(host)", "cuda-host"),
        ("cuMemcpyDtoHAsync_v2", "cuda-copy"),
        ("cuMemcpyHtoDAsync_v2", "cuda-copy"),
    ] {
        let calls: Vec<_> = fake.calls(function).into_iter().filter(|(caller, _)| caller == thread).collect();
        assert!(!calls.is_empty() && calls.iter().all(|(_, cpus)| *cpus == near), "{function}: {calls:?}");
    }
}
