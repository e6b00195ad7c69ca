//! How fast lanes begin copies: the difference of two counts.

use std::time::Duration;

use vramd_proto::v1;

/// Bytes a second on one lane, by class, and the speed of the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaneRate {
    pub(super) way: v1::LinkWay,
    pub(super) device: String,
    pub(super) demand: u64,
    pub(super) prefetch: u64,
    pub(super) write_back: u64,
    /// 0 if the daemon could not measure it.
    pub(super) speed: u64,
}

/// The rates between two counts that lie so far apart. Without an earlier count every rate is 0.
pub(super) fn rates(
    before: Option<&v1::ListLinksResponse>,
    now: &v1::ListLinksResponse,
    span: Duration,
) -> Vec<LaneRate> {
    let lane = |traffic: &v1::LaneTraffic| {
        let is_same = |it: &&v1::LaneTraffic| it.way == traffic.way && it.device == traffic.device;
        let earlier = before.and_then(|before| before.traffic.iter().find(is_same));
        let rate = |of: &dyn Fn(&v1::LaneTraffic) -> u64| {
            earlier.map_or(0, |earlier| per_second(of(traffic).saturating_sub(of(earlier)), span))
        };
        LaneRate {
            way: traffic.way(),
            device: traffic.device.clone(),
            demand: rate(&|it| it.demand_bytes),
            prefetch: rate(&|it| it.prefetch_bytes),
            write_back: rate(&|it| it.write_back_bytes),
            speed: speed(now, traffic),
        }
    };
    now.traffic.iter().map(lane).collect()
}

/// The speed of the slowest link on the way of a lane.
fn speed(links: &v1::ListLinksResponse, traffic: &v1::LaneTraffic) -> u64 {
    let lanes = links.links.iter().flat_map(|link| &link.lanes);
    let own = lanes.filter(|lane| lane.way == traffic.way && lane.device == traffic.device);
    own.map(|lane| lane.bytes_per_second).min().unwrap_or(0)
}

fn per_second(bytes: u64, span: Duration) -> u64 {
    let rate = u128::from(bytes) * 1000;
    u64::try_from(rate.checked_div(span.as_millis()).unwrap_or(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_difference_of_two_counts_over_time() {
        let way = v1::LinkWay::ToDevice.into();
        let traffic = |demand_bytes| v1::LaneTraffic { way, demand_bytes, ..Default::default() };
        let lane = |bytes_per_second| v1::link::Lane { way, bytes_per_second, ..Default::default() };
        let links = ["own", "uplink"].map(|name| v1::Link {
            name: name.to_owned(),
            lanes: vec![lane(if name == "own" { 900 } else { 700 })],
        });
        let at = |bytes| v1::ListLinksResponse { links: links.to_vec(), traffic: vec![traffic(bytes)] };
        let found = rates(Some(&at(1000)), &at(4000), Duration::from_millis(1500));
        assert_eq!((found[0].demand, found[0].speed), (2000, 700));
        assert_eq!(rates(None, &at(4000), Duration::from_secs(1))[0].demand, 0, "no count came before");
        let restarted = rates(Some(&at(4000)), &at(10), Duration::from_secs(1));
        assert_eq!(restarted[0].demand, 0, "the daemon has begun to count again");
        assert_eq!(rates(Some(&at(1)), &at(2), Duration::ZERO)[0].demand, 0);
    }
}
