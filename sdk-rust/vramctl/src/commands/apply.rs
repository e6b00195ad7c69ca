//! `vramctl apply`: has the daemon apply a tenants file.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use super::{device, names::tier_name};
use crate::output::{
    Output,
    device_names::DeviceNames,
    failure::Failure,
    table::{Column, table},
};

/// The place of a change that concerns no device.
const NO_PLACE: &str = "-";

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Tenants file, or `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Print what differs and change nothing. The exit status is 4 if something differs.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(apply: &Apply, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let (content, source) = read(&apply.file)?;
    let request = v1::ApplyTenantsRequest { content, source, dry_run: apply.dry_run };
    let changes = admin.apply_tenants(request)?.changes;
    let devices = changes.iter().map(|change| change.device.as_str()).filter(|uuid| !uuid.is_empty());
    let names = device::fetch_names(admin, devices, output);
    let fields = json!({
        "dry_run": apply.dry_run,
        "changes": changes.iter().map(to_json).collect::<Vec<_>>(),
    });
    output.show(|| text(&changes, &names, apply.dry_run), fields)?;
    if apply.dry_run && !changes.is_empty() { Err(Failure::Differs) } else { Ok(()) }
}

/// Returns the content of the file, and its name for the daemon.
fn read(path: &Path) -> Result<(Vec<u8>, String), Failure> {
    if path == Path::new("-") {
        let name = "standard input";
        let mut content = Vec::new();
        io::stdin().lock().read_to_end(&mut content).map_err(Failure::file(Path::new(name)))?;
        return Ok((content, name.to_owned()));
    }
    let content = fs::read(path).map_err(Failure::file(path))?;
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok((content, whole.display().to_string()))
}

fn text(changes: &[v1::TenantChange], names: &DeviceNames, dry_run: bool) -> String {
    let columns = [
        Column::text("TENANT").key(),
        Column::text("DEVICE"),
        Column::text("TIER"),
        Column::text("FIELD").always(),
        Column::text("BEFORE").always(),
        Column::text("AFTER").always(),
    ];
    let row = |change: &v1::TenantChange| {
        let (device, tier) = match change.device.as_str() {
            "" => (NO_PLACE.to_owned(), NO_PLACE),
            uuid => (names.name(uuid), tier_name(change.tier())),
        };
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".to_owned());
        vec![
            change.tenant.clone(),
            device,
            tier.to_owned(),
            change.field.clone(),
            value(&change.before),
            value(&change.after),
        ]
    };
    let count = match changes.len() {
        1 => "1 value".to_owned(),
        count => format!("{count} values"),
    };
    match (changes, dry_run) {
        ([], _) => "nothing differs".to_owned(),
        (_, true) => format!("{}\n\n{count} would change", table(&columns, changes.iter().map(row))),
        (_, false) => format!("{}\n\n{count} changed", table(&columns, changes.iter().map(row))),
    }
}

fn to_json(change: &v1::TenantChange) -> Value {
    let has_place = !change.device.is_empty();
    json!({
        "tenant": change.tenant,
        "field": change.field,
        "device": has_place.then_some(&change.device),
        "tier": has_place.then(|| tier_name(change.tier())),
        "before": change.before,
        "after": change.after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_a_table_with_their_number_below() {
        let class = v1::TenantChange {
            tenant: "a".to_owned(),
            field: "class".to_owned(),
            after: Some("background".to_owned()),
            ..Default::default()
        };
        let limit = v1::TenantChange {
            tenant: "a".to_owned(),
            field: "limit".to_owned(),
            device: "*".to_owned(),
            before: Some("75%".to_owned()),
            ..Default::default()
        };
        let text = |changes: &[_], dry_run| super::text(changes, &DeviceNames::uuids(), dry_run);
        assert_eq!(text(&[], true), "nothing differs");
        assert_eq!(
            text(&[class.clone(), limit], true),
            "TENANT  DEVICE  TIER    FIELD  BEFORE   AFTER\n\
             a       -       -       class  default  background\n\
             a       *       device  limit  75%      default\n\n2 values would change"
        );
        assert!(text(std::slice::from_ref(&class), false).ends_with("\n\n1 value changed"));
        assert_eq!(to_json(&class)["device"], Value::Null);
    }
}
