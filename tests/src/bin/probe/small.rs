//! Small allocations where system calls are forbidden, and in a forked child.

#![allow(unsafe_code, reason = "a thread forbids itself system calls, and must end without any but exit")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Bytes, Client, Pool, PoolBlock, PoolConfig, Reason};
use vramd_tests::wait::until;

use crate::fork;

const SIZES: [u64; 5] = [1, 300, 4096, 20_000, 100_000];

fn pool(client: &Client) -> Result<Pool> {
    let config = PoolConfig::default().chunk_size(Bytes::mib(8)).idle_after(Duration::from_secs(3600));
    Ok(client.pool(config)?)
}

fn some(pool: &Pool) -> Option<Vec<PoolBlock>> {
    SIZES.iter().map(|size| pool.alloc(Bytes::new(*size)).ok()).collect()
}

/// Allocates and frees on a thread that the kernel ends if it makes a system call.
pub(super) fn strict(client: &Client, pairs: u64) -> Result<Value> {
    let pool = pool(client)?;
    // By now the caches have every block that is needed.
    ensure!(some(&pool).is_some(), "no small allocations");
    let done = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&done);
    thread::spawn(move || {
        let _warm = some(&pool);
        drop(_warm);
        // SAFETY: a plain system call on this thread alone, which from here on makes none but the last.
        let forbidden = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        if forbidden != 0 {
            return;
        }
        let mut count = 0;
        while count < pairs {
            for size in SIZES {
                count += u64::from(pool.alloc(Bytes::new(size)).is_ok());
            }
        }
        counts.store(count, Ordering::Release);
        // SAFETY: ends this thread where it stands. Objects on its stack are never dropped, and no thread waits for it.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    until("the pairs are done without a system call", || done.load(Ordering::Acquire) >= pairs);
    Ok(json!({ "pairs": done.load(Ordering::Acquire) }))
}

/// Checks that a child can neither allocate nor read, and that its drops change nothing.
pub(super) fn forked(client: &Client) -> Result<Value> {
    let pool = pool(client)?;
    let mut block = pool.alloc(Bytes::new(1000))?;
    block.as_mut_slice()?.fill(4);
    let foreign = Some(Reason::SessionForeign);
    let inherited = (pool.clone(), pool.alloc(Bytes::new(1000))?);
    let answer = fork::run(|| {
        let (pool, other) = inherited;
        let refused = pool.alloc(Bytes::new(1000)).is_err_and(|error| error.reason() == foreign)
            && block.as_slice().is_err_and(|error| error.reason() == foreign);
        drop((other, pool));
        refused
    })?;
    // The parent's pool still works.
    ensure!(pool.alloc(Bytes::new(1000))?.as_device_ptr() != block.as_device_ptr(), "given away twice");
    ensure!(block.as_slice()? == [4; 1000], "the parent's bytes changed");
    Ok(answer)
}
