//! `vramctl estimate …`: whether a model fits, and how fast it would stream.

mod model;
mod need;

use std::{io, path::PathBuf};

use clap::Args;
use serde_json::json;
use vramd_client::{ClientBuilder, Tier};

use self::{
    model::{Model, WeightsFrom},
    need::{Need, Stream, Use},
};
use super::settings;
use crate::output::{
    Output,
    failure::Failure,
    text::{facts, size},
};

#[derive(Debug, Args)]
pub(crate) struct Estimate {
    /// Configuration of the model (`config.json` of Hugging Face), or the folder with it.
    config: PathBuf,
    /// Device memory for the model, like 24GiB. Without it, the daemon is asked for the limit of the caller's tenant.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// Bytes per second of the link between host and device. The default is PCIe 5.0 with 16 lanes, as measured.
    #[arg(long, value_name = "SIZE", default_value = "55GB", value_parser = bytes)]
    link: u64,
    /// Size of the weights. Without it, that of the files beside the configuration, or what its numbers give.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    weights: Option<u64>,
    /// Sequences at once.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Tokens that each sequence keeps.
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Tokens that one step computes at most, as in a prefill.
    #[arg(long, value_name = "COUNT", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    step_tokens: u32,
}

pub(crate) fn run(estimate: &Estimate, client: ClientBuilder, output: &Output) -> Result<(), Failure> {
    let path = model::file_of(&estimate.config);
    let model = Model::read(&path, estimate.weights).map_err(Failure::file(&path))?;
    let [batch, tokens, step_tokens] = [estimate.batch, estimate.tokens, estimate.step_tokens].map(u64::from);
    let how = Use { batch, tokens, step_tokens };
    let need = Need::of(&model, how);
    if need.sum() == u64::MAX {
        let error =
            io::Error::new(io::ErrorKind::InvalidData, "such a model needs more bytes than there are");
        return Err(Failure::file(&path)(error));
    }
    let memory = match estimate.memory {
        Some(memory) => memory,
        None => own_limit(client)?,
    };
    let fits = need.sum() <= memory;
    let stream = if fits { None } else { need.stream(&model, how, memory, estimate.link) };
    let fields = json!({
        "weights_bytes": need.weights,
        "weights_from": match model.weights_from {
            WeightsFrom::Files => "files",
            WeightsFrom::Shape => "shape",
            WeightsFrom::CommandLine => "command-line",
        },
        "cache_bytes": need.cache,
        "activation_bytes": need.activations,
        "context_bytes": need.context,
        "reserve_bytes": need.reserve,
        "need_bytes": need.sum(),
        "memory_bytes": memory,
        "fits": fits,
        "stream": stream.map(|stream| json!({
            "resident_bytes": stream.resident,
            "buffer_bytes": stream.buffers,
            "copied_bytes_per_pass": stream.copied,
            "link_bytes_per_second": estimate.link,
            "seconds_per_pass_min": stream.seconds,
        })),
    });
    output.show(|| text(&model, &need, how, memory, stream, estimate.link), fields)
}

/// The limit of the caller's tenant on the device where it is largest.
fn own_limit(client: ClientBuilder) -> Result<u64, Failure> {
    let quotas = client.name("vramctl estimate").connect_raw()?.quota()?;
    let limits = quotas.iter().filter(|quota| quota.tier == Tier::Device).map(|quota| quota.limit.get());
    Ok(limits.max().unwrap_or_default())
}

fn text(model: &Model, need: &Need, how: Use, memory: u64, stream: Option<Stream>, link: u64) -> String {
    let from = match model.weights_from {
        WeightsFrom::Files => "the files beside the configuration",
        WeightsFrom::Shape => "from the configuration's numbers",
        WeightsFrom::CommandLine => "as given",
    };
    let verdict = match (memory.checked_sub(need.sum()), stream) {
        (Some(left), _) => format!("yes, with {} left", size(left)),
        (None, Some(_)) => {
            format!("no, {} short: the weights stream", size(need.sum().saturating_sub(memory)))
        }
        (None, None) => {
            format!(
                "no, {} short: no room for two layers of weights beside the rest",
                size(need.sum().saturating_sub(memory))
            )
        }
    };
    let mut lines = vec![
        ("weights", format!("{} ({from})", size(need.weights))),
        ("KV cache", format!("{} (batch of {}, {} tokens each)", size(need.cache), how.batch, how.tokens)),
        ("activations", format!("{} (steps of {} tokens)", size(need.activations), how.step_tokens)),
        ("context", size(need.context)),
        ("reserve", format!("{} (a tenth of all that)", size(need.reserve))),
        ("need", size(need.sum())),
        ("memory", size(memory)),
        ("fits", verdict),
    ];
    if let Some(stream) = stream {
        let speed = link as f64 / 1e9;
        let passes = format!("{:.2} s", stream.seconds);
        let tokens = how.batch as f64 / stream.seconds;
        lines.extend([
            (
                "stays",
                format!(
                    "{} of weights, beside {} for two layers",
                    size(stream.resident),
                    size(stream.buffers)
                ),
            ),
            ("copied", format!("{} a pass", size(stream.copied))),
            ("pass", format!("at least {passes} at {speed:.1} GB/s: at most {tokens:.2} tokens/s")),
        ]);
    }
    facts(&lines)
}

/// Parses bytes of which there are some.
fn bytes(text: &str) -> Result<u64, String> {
    match settings::bytes(text)? {
        0 => Err("it is 0".to_owned()),
        bytes => Ok(bytes),
    }
}
