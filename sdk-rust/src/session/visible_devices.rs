//! The devices that this process sees, so that nothing is placed where it could not be mapped.
//!
//! A list by the program or `VRAMD_VISIBLE_DEVICES` is taken as it is. Otherwise the session opens for any device. If
//! the daemon then shows several, CUDA is asked which of them this process sees (`CUDA_VISIBLE_DEVICES`, the devices
//! of its container). If it sees some of them, but not all, the session is opened again with their UUIDs. So one
//! device costs nothing, and a machine with GPUs sees the devices of a simulated node. CUDA is not initialised
//! without need, since a forked child could not use it any more. A program that connects on a node of several GPUs
//! and forks CUDA workers afterwards should list its devices.
//!
//! If CUDA shows none of the daemon's devices, nothing is narrowed: they are simulated, or mapping will say which
//! device the process lacks.

use vramd_proto::v1::Device;

use crate::cuda::Driver;

/// The UUIDs to open the session with instead; `None` if the session is right as it is.
pub(crate) fn narrowed(shown: &[Device]) -> Option<Vec<String>> {
    if shown.len() < 2 {
        return None;
    }
    let driver = Driver::of_process().ok()?;
    some_but_not_all(shown, |uuid| driver.sees(uuid))
}

fn some_but_not_all(shown: &[Device], sees: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let uuids = shown.iter().map(|device| device.uuid.clone());
    let seen: Vec<_> = uuids.filter(|uuid| sees(uuid)).collect();
    (!seen.is_empty() && seen.len() < shown.len()).then_some(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_but_not_all_visible_devices_narrow_the_session() {
        let device =
            |index: u32| Device { uuid: format!("GPU-{index}"), index, name: String::new(), simulated: true };
        let shown: Vec<_> = (0..3).map(device).collect();
        let seen = |wanted: &'static [&'static str]| some_but_not_all(&shown, |uuid| wanted.contains(&uuid));
        assert_eq!(seen(&["GPU-2", "GPU-0", "GPU-9"]), Some(vec!["GPU-0".to_owned(), "GPU-2".to_owned()]));
        assert_eq!(seen(&["GPU-0", "GPU-1", "GPU-2"]), None, "all of them");
        assert_eq!(seen(&["GPU-9"]), None, "a simulated node");
        assert_eq!(narrowed(&shown[..1]), None, "nothing to choose from");
    }
}
