//! The command line.

use std::{ffi::OsString, path::PathBuf};

use broker_driver::cuda::CudaConfig;

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) config: CudaConfig,
    /// The devices to use; all usable ones if there are none.
    pub(crate) devices: Vec<String>,
    /// The directory for extents on disk; the system's folder for temporary files if there is none.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) json: Option<PathBuf>,
    /// Parts of the names of the cases to run.
    pub(crate) only: Vec<String>,
}

impl Arguments {
    pub(crate) fn read(mut words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            let word = word.into_string().map_err(|word| format!("{} is not valid text", word.display()))?;
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--library" => arguments.config.library = Some(value()?.into()),
                "--nvml" => arguments.config.nvml = Some(value()?.into()),
                "--params" => arguments.config.params = Some(value()?.into()),
                "--directory" => arguments.directory = Some(value()?.into()),
                "--json" => arguments.json = Some(value()?.into()),
                "--device" => {
                    let uuid = value()?.into_string().map_err(|_| "--device needs a UUID".to_owned())?;
                    arguments.devices.push(uuid);
                }
                option if option.starts_with('-') => return Err(format!("unknown option {option}")),
                _ => arguments.only.push(word),
            }
        }
        Ok(arguments)
    }
}
