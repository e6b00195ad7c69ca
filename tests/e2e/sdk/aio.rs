//! The async interface of the Rust SDK against a real daemon, on runtimes of one thread and of several.

use std::{future::Future, thread, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::timeout,
};
use vramd_client::{AllocationRequest, Bytes, Client, Error, PoolConfig, Reason, aio};
use vramd_proto::v1::{ListWaitsRequest, SessionState};
use vramd_tests::{Config, Daemon, MIB, MIB_2, NodeState, config::Effect, content, digest, wait::until};

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.worker_threads(3).enable_all().build().unwrap())
}

/// Runs this on both kinds of runtimes, each with a daemon of its own. The future could be spawned.
fn on_each_runtime<Work>(work: impl Fn(Daemon) -> Work)
where
    Work: Future<Output = Daemon> + Send + 'static,
{
    for runtime in runtimes() {
        let daemon = runtime.block_on(runtime.spawn(work(Daemon::new()))).unwrap();
        daemon.drains();
    }
}

/// Runs blocking code of the harness, which no thread of a runtime may run.
fn run_blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn state(daemon: &Daemon) -> NodeState {
    run_blocking(|| daemon.state())
}

fn settled(daemon: &Daemon) -> NodeState {
    run_blocking(|| daemon.settled_state())
}

async fn connect(daemon: &Daemon) -> aio::Client {
    Client::builder().socket_dir(daemon.sockets()).name("aio").connect_async().await.unwrap()
}

fn request(size: u64) -> AllocationRequest {
    AllocationRequest::new(Bytes::new(size)).part_size(Bytes::new(MIB_2))
}

#[test]
fn a_task_writes_seals_attaches_and_frees() {
    on_each_runtime(|daemon| async move {
        let client = connect(&daemon).await;
        let size = 5 * MIB + 77;
        let mut weights = client.allocate(request(size).name("weights").persistent()).await.unwrap();
        weights.copy_from_host_async(0, &content(size, 3)).await.unwrap();
        let address = weights.as_slice().unwrap().as_ptr().addr();
        let sealed = weights.seal_async().await.unwrap();
        assert_eq!(sealed.digest(), digest(&content(size, 3)));
        assert_eq!(sealed.as_slice().unwrap().as_ptr().addr(), address);

        let other = connect(&daemon).await;
        let attached = other.attach("weights").await.unwrap();
        let mut copy = vec![0; usize::try_from(size).unwrap()];
        attached.copy_to_host_async(0, &mut copy).await.unwrap();
        assert_eq!(copy, content(size, 3));
        assert_eq!(other.describe("weights").await.unwrap().mapper_count, 2);
        let names: Vec<_> = other.list("wei").await.unwrap().into_iter().map(|info| info.id).collect();
        assert_eq!(names, [sealed.id()]);
        attached.detach_async().await.unwrap();
        assert!(matches!(other.attach("nothing").await, Err(Error::AllocationNotFound { .. })));

        // By id, since no handle is left.
        let id = sealed.id();
        sealed.detach_async().await.unwrap();
        let released = client.free(id).await.unwrap();
        assert_eq!((released.still_charged, released.mapper_count), (Bytes::ZERO, 0));
        let open = client.allocate(request(MIB)).await.unwrap();
        assert_eq!(open.free_async().await.unwrap().mapper_count, 0);
        daemon
    });
}

#[test]
fn many_futures_at_once_share_one_session() {
    on_each_runtime(|daemon| async move {
        let client = connect(&daemon).await;
        let mut tasks = JoinSet::new();
        for seed in 0..100 {
            let client = client.clone();
            tasks.spawn(async move {
                let size = 300_000 + seed;
                let mut one = client.allocate(request(size)).await?;
                one.copy_from_host_async(0, &content(size, seed)).await?;
                let one = one.seal_async().await?;
                assert_eq!(one.digest(), digest(&content(size, seed)));
                let batch = client.allocate_batch([request(1), request(MIB_2 + 1)]).await?;
                assert_eq!(batch.len(), 2);
                for each in batch {
                    each.free_async().await?;
                }
                Ok::<_, Error>(one.free_async().await?)
            });
        }
        while let Some(done) = tasks.join_next().await {
            assert_eq!(done.unwrap().unwrap().still_charged, Bytes::ZERO);
        }
        assert_eq!(state(&daemon).sessions.len(), 1);
        daemon
    });
}

/// Both interfaces wait for memory of one session at the same time: a thread reads the channel, and wakes the tasks.
#[test]
fn threads_and_tasks_of_one_session_wait_together() {
    on_each_runtime(|daemon| async move {
        let client = connect(&daemon).await;
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let client = client.blocking().clone();
                tokio::task::spawn_blocking(move || {
                    for _ in 0..50 {
                        client.allocate(request(MIB)).unwrap().free().unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            client.allocate(request(MIB)).await.unwrap().free_async().await.unwrap();
        }
        for thread in threads {
            thread.await.unwrap();
        }
        daemon
    });
}

/// The future is dropped before the answer. The daemon releases whatever it made for it.
#[test]
fn an_allocation_of_a_dropped_future_is_freed() {
    for runtime in runtimes() {
        let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
        runtime.block_on(async {
            let client = connect(&daemon).await;
            // A drop that waited for the answer would never end.
            timeout(Duration::from_millis(1000), client.allocate(request(4 * MIB))).await.unwrap_err();
            assert!(!state(&daemon).is_empty(), "the daemon is at it");
            daemon.end_holds();
            client.flush().await.unwrap();
            assert!(settled(&daemon).is_empty(), "nothing of it is left");
            // The session still works.
            drop(client.allocate(request(4 * MIB)).await.unwrap());
        });
        daemon.drains();
    }
}

/// The future is dropped at any moment: nothing is left, and nothing is broken.
#[test]
fn futures_dropped_at_any_moment_leak_nothing() {
    on_each_runtime(|daemon| async move {
        let client = connect(&daemon).await;
        let mut rng = fastrand::Rng::with_seed(7);
        let kept = client.allocate(request(MIB).name("kept").persistent()).await.unwrap();
        let kept = kept.seal_async().await.unwrap();
        let other = connect(&daemon).await;
        let mut ended = 0;
        for _ in 0..150 {
            let patience = Duration::from_micros(rng.u64(0..3_000));
            let all = async {
                let mut one = client.allocate(request(3 * MIB)).await?;
                one.copy_from_host_async(0, &[1; 100_000]).await?;
                let attached = other.attach("kept").await?;
                let sealed = one.seal_async().await?;
                attached.detach_async().await?;
                sealed.free_async().await?;
                Ok::<_, Error>(())
            };
            if let Ok(outcome) = timeout(patience, all).await {
                outcome.unwrap();
                ended += 1;
            }
        }
        eprintln!("{ended} of 150 were done in time");
        client.flush().await.unwrap();
        other.flush().await.unwrap();
        assert_eq!(other.attach("kept").await.unwrap().digest(), kept.digest());
        until("only what is kept is left", || state(&daemon).allocations.len() == 1);
        assert!(client.blocking().is_connected() && other.blocking().is_connected());
        kept.free_async().await.unwrap();
        daemon
    });
}

/// The future is dropped while its request waits for room: the request leaves the line at once.
#[test]
fn a_dropped_allocation_leaves_the_line() {
    for runtime in runtimes() {
        let daemon = Daemon::start(&Config::devices(&["16MiB"]));
        runtime.block_on(async {
            let client = connect(&daemon).await;
            let held = client.allocate(request(16 * MIB)).await.unwrap();
            let waiting = client.allocate(request(8 * MIB).wait(Duration::from_secs(60)));
            timeout(Duration::from_millis(300), waiting).await.unwrap_err();
            let waits = || daemon.admin.list_waits(ListWaitsRequest::default()).ok().waits;
            run_blocking(|| until("the line is empty", || waits().is_empty()));
            held.free_async().await.unwrap();
            client.allocate(request(16 * MIB)).await.unwrap().free_async().await.unwrap();
        });
        daemon.drains();
    }
}

/// A persistent allocation is sealed although its future was dropped.
#[test]
fn a_persistent_seal_completes_after_its_future_is_dropped() {
    for runtime in runtimes() {
        let daemon = Daemon::start(&Config::default().fault("digest", 1, Effect::Hold));
        runtime.block_on(async {
            let client = connect(&daemon).await;
            let mut weights = client.allocate(request(MIB).name("weights").persistent()).await.unwrap();
            weights.copy_from_host_async(0, &content(MIB, 4)).await.unwrap();
            timeout(Duration::from_millis(100), weights.seal_async()).await.unwrap_err();
            daemon.end_holds();
            client.flush().await.unwrap();
            let sealed = client.attach("weights").await.unwrap();
            assert_eq!(sealed.digest(), digest(&content(MIB, 4)));

            // A session allocation is freed.
            let passing = client.allocate(request(MIB)).await.unwrap();
            let _ = timeout(Duration::ZERO, passing.seal_async()).await;
            client.flush().await.unwrap();
            assert_eq!(settled(&daemon).allocations.len(), 1);
            sealed.free_async().await.unwrap();
        });
        daemon.drains();
    }
}

#[test]
fn a_client_outlives_the_runtime_that_it_was_made_on() {
    let daemon = Daemon::new();
    let [first, second] = runtimes();
    let client = first.block_on(connect(&daemon));
    drop(first.block_on(client.allocate(request(MIB))).unwrap());
    drop(first);
    let one = second.block_on(client.allocate(request(MIB))).unwrap();
    // A handle of the blocking interface, without a runtime.
    one.free().unwrap();
    assert!(client.blocking().list("").unwrap().is_empty());
    daemon.drains();
}

#[test]
fn refusals_and_deadlines_are_the_same() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).fault("create", 2, Effect::Hold));
    let [one, _] = runtimes();
    one.block_on(async {
        let builder = Client::builder().socket_dir(daemon.sockets());
        let client = builder.request_timeout(Duration::from_millis(1000)).connect_async().await.unwrap();
        assert!(matches!(
            client.allocate(request(65 * MIB)).await,
            Err(Error::QuotaLimit { .. } | Error::DeviceFull { .. })
        ));
        assert_eq!(client.allocate(request(0)).await.unwrap_err().reason(), Some(Reason::SizeInvalid));
        drop(client.allocate(request(MIB)).await.unwrap());
        client.flush().await.unwrap();
        assert_eq!(client.allocate(request(MIB)).await.unwrap_err().reason(), Some(Reason::Deadline));
        daemon.end_holds();
    });
    // There is no runtime here.
    let client = aio::Client::from(Client::builder().socket_dir(daemon.sockets()).connect().unwrap());
    let outcome = std::pin::pin!(client.describe("x"))
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(
        matches!(&outcome, std::task::Poll::Ready(Err(Error::BrokerGone { problem, .. })) if problem.contains("runtime")),
        "{outcome:?}"
    );
}

#[test]
fn a_client_reconnects_to_a_restarted_daemon_on_request() {
    let daemon = Daemon::new();
    let [_, runtime] = runtimes();
    let client = runtime.block_on(connect(&daemon));
    let mut weights = runtime.block_on(client.allocate(request(MIB))).unwrap();
    weights.as_mut_slice().unwrap().fill(6);
    let home = daemon.kill();
    assert!(matches!(runtime.block_on(client.allocate(request(1))), Err(Error::BrokerGone { .. })));
    assert!(matches!(runtime.block_on(client.reconnect()), Err(Error::BrokerGone { .. })));
    let daemon = Daemon::start_in(home);
    let again = runtime.block_on(async {
        let again = client.reconnect().await.unwrap();
        assert_eq!(client.allocate(request(1)).await.unwrap_err().reason(), Some(Reason::SessionLost));
        let failed = weights.seal_async().await.unwrap_err();
        assert_eq!(failed.error.reason(), Some(Reason::SessionLost));
        assert!(failed.allocation.as_slice().unwrap().iter().all(|byte| *byte == 6));
        drop(again.allocate(request(MIB)).await.unwrap());
        again.flush().await.unwrap();
        again
    });
    assert!(again.blocking().is_connected());
    assert_eq!(state(&daemon).sessions.iter().filter(|row| row.state() == SessionState::Live).count(), 1);
}

#[test]
fn small_allocations_do_not_block_the_runtime() {
    on_each_runtime(|daemon| async move {
        let client = connect(&daemon).await;
        let pool = client.blocking().pool(PoolConfig::default().chunk_size(Bytes::new(MIB_2))).unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let pool = pool.clone();
            tasks.spawn(async move {
                let mut blocks = Vec::new();
                for _ in 0..50 {
                    let mut block = pool.alloc_async(Bytes::new(10_000)).await.unwrap();
                    block.as_mut_slice().unwrap().fill(1);
                    blocks.push(block);
                }
                blocks
            });
        }
        let blocks = tasks.join_all().await;
        assert_eq!(blocks.iter().map(Vec::len).sum::<usize>(), 1_000);
        let error = pool.alloc_async(Bytes::mib(1)).await.unwrap_err();
        assert!(matches!(error, Error::BlockTooLarge { .. }));
        daemon
    });
}
