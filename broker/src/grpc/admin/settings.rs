//! Settings, which operators may change while the daemon runs.

use std::time::Duration;

use broker_core::{
    Broker, EvictionPolicy, OperatorRequest, PressureChange, Refusal, Reply, SettingsChange, ShareChange,
    TierChange,
};
use tonic::Status;
use vramd_proto::v1;
use vramd_types::Bytes;

use super::{Admin, Operator};
use crate::{
    events::settings as message_of,
    grpc::{
        convert::request as convert,
        status::{self, refused},
    },
};

impl Admin {
    pub(super) async fn settings(&self) -> Result<v1::GetSettingsResponse, Status> {
        let both = |broker: &Broker| (broker.settings(), broker.configured_settings());
        let (now, configured) = self.read(both).await?;
        let (settings, configured) = (Some(message_of(&now)), Some(message_of(&configured)));
        Ok(v1::GetSettingsResponse { settings, configured })
    }

    pub(super) async fn change(
        &self,
        operator: Operator,
        message: v1::ChangeSettingsRequest,
    ) -> Result<v1::ChangeSettingsResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let change = change(message.change.unwrap_or_default()).map_err(|refusal| refused(&refusal))?;
        let change = OperatorRequest::ChangeSettings(change);
        match self.submit(operator, key, change).await? {
            Reply::SettingsChanged(now) => {
                Ok(v1::ChangeSettingsResponse { settings: Some(message_of(&now)) })
            }
            other => Err(status::wrong_reply("ChangeSettings", &other)),
        }
    }
}

fn change(message: v1::Settings) -> Result<SettingsChange, Refusal> {
    let (pressure, tiers) = (message.pressure.unwrap_or_default(), message.tiers.unwrap_or_default());
    let shares = message.shares.unwrap_or_default();
    let eviction = message.eviction.unwrap_or_default();
    Ok(SettingsChange {
        pressure: PressureChange {
            elevated_percent: pressure.elevated_percent,
            high_percent: pressure.high_percent,
            critical_percent: pressure.critical_percent,
            fall_percent: pressure.fall_percent,
            evict_to_percent: pressure.evict_to_percent,
            cold_after: pressure.cold_after_ms.map(Duration::from_millis),
        },
        tiers: TierChange { host: tiers.host_bytes.map(Bytes::new), disk: tiers.disk_bytes.map(Bytes::new) },
        shares: ShareChange {
            demand_percent: shares.demand_percent,
            prefetch_percent: shares.prefetch_percent,
            write_back_percent: shares.write_back_percent,
        },
        eviction_policy: eviction.policy.map(policy).transpose()?,
    })
}

fn policy(number: i32) -> Result<EvictionPolicy, Refusal> {
    let known = v1::EvictionPolicy::try_from(number).ok().and_then(|policy| policy.name().parse().ok());
    known.ok_or_else(|| Refusal::SettingInvalid {
        field: "eviction_policy",
        given: number.to_string(),
        allowed: EvictionPolicy::NAMES.to_owned(),
        problem: format!("{number} is no eviction policy that this daemon knows"),
    })
}
