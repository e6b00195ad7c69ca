//! `vramctl link …`

use clap::Subcommand;
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use super::device;
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
    text::{size_or_dash, text_or_dash},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the links with their speeds, the lanes that share one, and the bytes begun on each lane by class.
    List,
}

pub(crate) fn run(verb: &Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let Verb::List = verb;
    let answer = admin.links()?;
    let fields = json!({
        "links": answer.links.iter().map(to_json).collect::<Vec<_>>(),
        "traffic": answer.traffic.iter().map(traffic_to_json).collect::<Vec<_>>(),
    });
    let lanes = answer.links.iter().flat_map(|link| &link.lanes).map(|lane| lane.device.as_str());
    let devices = lanes.chain(answer.traffic.iter().map(|lane| lane.device.as_str()));
    let names = device::fetch_names(admin, devices, output);
    let text =
        || format!("{}\n\nTRAFFIC\n{}", rows(&answer.links, &names), traffic_rows(&answer.traffic, &names));
    output.show(text, fields)
}

fn rows(links: &[v1::Link], names: &DeviceNames) -> String {
    let lanes = links.iter().flat_map(|link| {
        link.lanes.iter().map(|lane| {
            vec![
                link.name.clone(),
                direction_name(lane.way()),
                text_or_dash(&names.name(&lane.device)),
                format!("{:.1} GB/s", lane.bytes_per_second as f64 / 1e9),
                if link.lanes.len() > 1 { "yes" } else { "no" }.to_owned(),
            ]
        })
    });
    table(
        &[
            Column::text("LINK").key(),
            Column::text("DIRECTION"),
            Column::text("DEVICE"),
            Column::number("SPEED"),
            Column::text("SHARED"),
        ],
        lanes,
    )
}

/// One line for each lane that has carried bytes.
fn traffic_rows(lanes: &[v1::LaneTraffic], names: &DeviceNames) -> String {
    let used =
        lanes.iter().filter(|it| it.demand_bytes > 0 || it.prefetch_bytes > 0 || it.write_back_bytes > 0);
    table(
        &[
            Column::text("DIRECTION").key(),
            Column::text("DEVICE").key(),
            Column::number("DEMAND"),
            Column::number("PREFETCH"),
            Column::number("WRITE-BACK"),
        ],
        used.map(|lane| {
            vec![
                direction_name(lane.way()),
                text_or_dash(&names.name(&lane.device)),
                size_or_dash(lane.demand_bytes),
                size_or_dash(lane.prefetch_bytes),
                size_or_dash(lane.write_back_bytes),
            ]
        }),
    )
}

/// The direction of a lane, like `to-device`.
pub(super) fn direction_name(way: v1::LinkWay) -> String {
    way.as_str_name().trim_start_matches("LINK_WAY_").to_lowercase().replace('_', "-")
}

pub(super) fn to_json(link: &v1::Link) -> Value {
    let lanes = link.lanes.iter().map(|lane| {
        json!({ "way": direction_name(lane.way()), "device": lane.device, "bytes_per_second": lane.bytes_per_second })
    });
    json!({ "name": link.name, "lanes": lanes.collect::<Vec<_>>() })
}

pub(super) fn traffic_to_json(lane: &v1::LaneTraffic) -> Value {
    json!({
        "way": direction_name(lane.way()),
        "device": lane.device,
        "demand_bytes": lane.demand_bytes,
        "prefetch_bytes": lane.prefetch_bytes,
        "write_back_bytes": lane.write_back_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_of_a_link_has_a_row() {
        let lane = |way: v1::LinkWay, bytes_per_second| v1::link::Lane {
            way: way.into(),
            device: String::new(),
            bytes_per_second,
        };
        let lanes =
            vec![lane(v1::LinkWay::FromDisk, 3_100_000_000), lane(v1::LinkWay::ToDisk, 1_840_000_000)];
        let names = DeviceNames::uuids();
        let text = rows(&[v1::Link { name: "disk".to_owned(), lanes }], &names);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].contains("from-disk") && lines[1].contains("3.1 GB/s") && lines[1].ends_with("yes"),
            "{text}"
        );
        assert!(lines[2].contains("to-disk") && lines[2].contains("1.8 GB/s"), "{text}");
        assert!(!text.contains("DEVICE"), "a disk is of no device: {text}");
        assert_eq!(traffic_rows(&[v1::LaneTraffic::default()], &names), "(none)");
    }
}
