//! The configuration file: valid keys and values, and the error for each mistake.

use std::time::Duration;

use vramd_types::{Bytes, Quantity};

use super::*;

/// The example for operators, which is shipped.
const EXAMPLE: &str = include_str!("../../../deploy/config/vramd.toml");

/// The page for testers, which has the keys that no operator needs.
const SIMULATED_DRIVER: &str = include_str!("../../../docs/testing/simulated-driver.md");

/// The tables of which the page for testers may have keys in place of the example.
const TABLES_FOR_TESTS: [&str; 3] = ["[driver.sim]", "[[driver.sim.faults]]", "[[driver.sim.revocations]]"];

/// Every table of the configuration, as it is written in a file.
const TABLES: [&str; 15] = [
    "[daemon]",
    "[driver]",
    "[driver.cuda]",
    "[driver.sim]",
    "[[driver.sim.devices]]",
    "[[driver.sim.faults]]",
    "[[driver.sim.revocations]]",
    "[memory]",
    "[pressure]",
    "[shares]",
    "[quota.default]",
    "[[tenants]]",
    "[limits]",
    "[turns]",
    "[telemetry]",
];

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse(""), Ok(Config::default()));
    assert_eq!(parse("[daemon]\n[quota.default]\n[limits]\n"), Ok(Config::default()));
}

#[test]
fn the_example_is_the_default() {
    assert_eq!(parse(EXAMPLE), Ok(Config::default()));
}

/// The code of all ```toml blocks of a page.
fn toml_blocks(page: &str) -> String {
    let blocks = page.split("```toml\n").skip(1).filter_map(|block| block.split_once("```"));
    blocks.map(|(block, _)| block).collect()
}

/// A commented line of the example that is no prose: a table's title, or a key.
fn commented_out(line: &str) -> Option<&str> {
    let code = line.strip_prefix("# ").or_else(|| line.strip_prefix('#'))?;
    let key = code
        .split_once(" = ")
        .is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
    (key || code.starts_with('[')).then_some(code)
}

#[test]
fn the_commented_lines_of_the_example_are_valid() {
    let all: Vec<_> = EXAMPLE.lines().map(|line| commented_out(line).unwrap_or(line)).collect();
    let config = parse(&all.join("\n")).unwrap_or_else(|location| panic!("{location}\n{}", all.join("\n")));
    assert_eq!(config.tenants.len(), 4);
    assert!(config.daemon.socket_dir.is_some() && config.daemon.operators.is_some());
}

#[test]
fn the_keys_for_tests_are_on_their_page_and_not_in_the_example() {
    let blocks = toml_blocks(SIMULATED_DRIVER);
    let sim = parse(&blocks).unwrap_or_else(|location| panic!("{location}\n{blocks}")).driver.sim;
    assert_eq!((sim.faults.len(), sim.revocations.len()), (4, 1));
    assert_eq!(Sim { faults: vec![], revocations: vec![], ..sim }, Sim::default());
    assert!(!EXAMPLE.lines().any(|line| TABLES_FOR_TESTS.contains(&commented_out(line).unwrap_or(line))));
}

#[test]
fn the_example_or_the_page_for_testers_has_every_key() {
    let blocks = toml_blocks(SIMULATED_DRIVER);
    for table in TABLES {
        let page = if TABLES_FOR_TESTS.contains(&table) { blocks.as_str() } else { "" };
        let location = parse(&format!("{table}\nzzz = 1\n")).expect_err(table);
        let expected =
            location.problem.split_once("expected").unwrap_or_else(|| panic!("{table}: {location}")).1;
        for key in expected.split('`').skip(1).step_by(2) {
            let here = |line: &str| {
                let code = commented_out(line).unwrap_or(line);
                let title = code.starts_with('[') && code.split(['.', '[', ']']).any(|part| part == key);
                title || code.starts_with(&format!("{key} = "))
            };
            assert!(EXAMPLE.lines().chain(page.lines()).any(here), "{table} {key}");
        }
    }
}

#[test]
fn given_keys_are_read() {
    let config = parse(
        r#"
        [daemon]
        operators = [1000]
        log_format = "json"
        [driver]
        kind = "sim"
        [driver.sim]
        link_to_host = "64MiB"
        [[driver.sim.devices]]
        memory = 1073741824
        [[driver.sim.faults]]
        on = "create"
        nth = 3
        effect = "delay"
        delay_ms = 50
        [[driver.sim.revocations]]
        at = "map_sent"
        nth = 2
        wait = true
        [memory]
        devices = ["0"]
        device_share = "90%"
        part_size = "2MiB"
        harvest_ms = 60000
        check_shadows = true
        eviction_policy = "gdsf"
        [pressure]
        elevated_percent = 60
        high_percent = 75
        critical_percent = 100
        fall_percent = 5
        evict_to_percent = 69
        cold_after_ms = 200
        [quota.default]
        limit = "1.5GiB"
        host_limit = "50%"
        [[tenants]]
        tenant = "pods"
        cgroup = "/kubepods.slice/**"
        class = "utility"
        [[tenants]]
        tenant = "chat"
        class = "interactive"
        weight = 300
        advice = "forbidden"
        [[tenants]]
        tenant = "pods"
        uid = 7
        [limits]
        hello_timeout_ms = 250
        [telemetry]
        prometheus_listen = "[::1]:9464"
        web_page = false
        otlp_endpoint = "http://collector:4317/"
        otlp_signals = ["traces"]
        traces_sample_ratio = 1
        export_interval_ms = 500
        "#,
    )
    .unwrap();
    assert_eq!(config.daemon.operators, Some(vec![1000]));
    assert_eq!(config.driver.sim.devices[0].memory, Bytes::gib(1));
    let sim = &config.driver.sim;
    assert_eq!((sim.link_to_device, sim.link_to_host), (Bytes::ZERO, Bytes::mib(64)));
    let fault = &config.driver.sim.faults[0];
    assert_eq!((fault.nth, fault.count, &fault.effect), (3, 1, &SimEffect::Delay(Duration::from_millis(50))));
    let nth = 2.try_into().unwrap();
    let revocation = SimRevocation { at: SimStep::MapSent, nth, every: None, wait: true };
    assert_eq!(config.driver.sim.revocations, [revocation]);
    assert_eq!(config.memory.devices, DeviceChoice::These(vec!["0".into()]));
    assert_eq!((config.memory.device_share, config.memory.part_size), (Quantity::Percent(90), Bytes::mib(2)));
    assert_eq!((config.memory.harvest, config.memory.check_shadows), (Duration::from_secs(60), true));
    assert_eq!(config.memory.eviction_policy, broker_core::EvictionPolicy::Gdsf);
    let bounds = broker_core::PressureBounds {
        elevated_percent: 60,
        high_percent: 75,
        critical_percent: 100,
        fall_percent: 5,
        evict_to_percent: 69,
        cold_after: Duration::from_millis(200),
        ..broker_core::PressureBounds::default()
    };
    assert_eq!(config.pressure.bounds(), bounds);
    let default = &config.quota.default;
    assert_eq!(default.limit, Quantity::Bytes(Bytes::new(3 << 29)));
    assert_eq!(default.host_limit, Quantity::Percent(50));
    assert_eq!(config.tenants[0].name, "pods");
    let standings = super::standings(&config.tenants);
    let told =
        |name: &str| standings.get(name).map(|it| (it.class.name(), it.weight.get(), it.advice.name()));
    assert_eq!(told("pods"), Some(("utility", 100, "allowed")));
    assert_eq!(told("chat"), Some(("interactive", 300, "forbidden")));
    assert!(config.tenants[0].rule.is_some() && config.tenants[1].rule.is_none());
    assert_eq!(config.limits.hello_timeout, Duration::from_millis(250));
    let telemetry = &config.telemetry;
    assert_eq!(telemetry.prometheus_listen, Some("[::1]:9464".parse().unwrap()));
    assert!(!telemetry.web_page);
    assert_eq!(telemetry.otlp_endpoint.as_ref().map(Endpoint::as_str), Some("http://collector:4317"));
    assert_eq!(
        (telemetry.otlp_protocol, &*telemetry.otlp_signals),
        (OtlpProtocol::Grpc, &[Signal::Traces][..])
    );
    assert_eq!(telemetry.traces_sample_ratio, 1.0.try_into().unwrap());
    assert_eq!(telemetry.export_interval, Duration::from_millis(500));
}

#[test]
fn every_error_names_line_column_and_field() {
    for (text, line, column, field, problem) in [
        ("[memory]\n\n  marign = 0\n", 3, 3, "memory.marign", "unknown field `marign`"),
        ("[demon]\n", 1, 2, "demon", "unknown field `demon`"),
        ("[memory]\ndevice_share = \"24gib\"\n", 2, 16, "memory.device_share", "unknown unit"),
        ("[memory]\nmargin = -1\n", 2, 10, "memory.margin", "below zero"),
        ("[memory]\nmargin = true\n", 2, 10, "memory.margin", "a quantity like"),
        ("[memory]\npart_size = \"3MiB\"\n", 2, 13, "memory.part_size", "not a multiple of 2 MiB"),
        ("[memory]\npart_size = \"50%\"\n", 2, 13, "memory.part_size", "a number of bytes"),
        ("[memory]\ndevices = []\n", 2, 11, "memory.devices", "expected \"all\""),
        ("[memory]\ndevices = 0\n", 2, 11, "memory.devices", "expected \"all\""),
        ("[driver]\nkind = \"rocm\"\n", 2, 8, "driver.kind", "unknown variant `rocm`"),
        (
            "[memory]\neviction_policy = \"LRU\"\n",
            2,
            19,
            "memory.eviction_policy",
            "the names are lru, weighted-lru, gdsf, s3-fifo, sieve, hit-density",
        ),
        ("[memory]\nharvest_ms = 0\n", 2, 14, "memory.harvest_ms", "between 1 and 60000 ms"),
        ("[memory]\nharvest_ms = 60001\n", 2, 14, "memory.harvest_ms", "between 1 and 60000 ms"),
        ("[limits]\nhello_timeout_ms = 0\n", 2, 20, "limits.hello_timeout_ms", "at least 1 ms"),
        ("[limits]\nsessions_max = 0\n", 2, 16, "limits.sessions_max", "at least 1"),
        ("[limits]\nsessions_max = -1\n", 2, 16, "limits.sessions_max", "invalid value"),
        ("[quota.default]\nguarantee = \"2GiB\"\n", 2, 1, "quota.default.guarantee", "unknown field"),
        ("[quota.default]\nhost_limit = \"101%\"\n", 2, 14, "quota.default.host_limit", "is too large"),
        ("[[tenants]]\ntenant = \"a b\"\nuid = 1\n", 1, 1, "tenants[0]", "is not a valid tenant name"),
        ("[[tenants]]\ntenant = \"a\"\n", 1, 1, "tenants[0]", "needs at least one of uid"),
        ("[[tenants]]\ntenant = \"a\"\ncgroup = \"x\"\n", 1, 1, "tenants[0]", "not a cgroup pattern"),
        (
            "[[tenants]]\ntenant = \"a\"\nclass = \"urgent\"\n",
            3,
            9,
            "tenants[0].class",
            "the names are background, utility, initiated, interactive",
        ),
        (
            "[[tenants]]\ntenant = \"a\"\nweight = 0\n",
            3,
            10,
            "tenants[0].weight",
            "0 is not between 1 and 10000",
        ),
        ("[[tenants]]\ntenant = \"a\"\nweight = 10001\n", 3, 10, "tenants[0].weight", "10001 is not between"),
        (
            "[[tenants]]\ntenant = \"a\"\nclass = \"utility\"\n[[tenants]]\ntenant = \"a\"\nclass = \"background\"\n",
            6,
            9,
            "tenants[1].class",
            "an earlier entry gives tenant `a` the class utility, this one background",
        ),
        (
            "[[tenants]]\ntenant = \"a\"\nweight = 5\n[[tenants]]\ntenant = \"a\"\nuid = 1\nweight = 6\n",
            7,
            10,
            "tenants[1].weight",
            "the weight 5, this one 6",
        ),
        (
            "[[tenants]]\ntenant = \"a\"\nadvice = \"ignored\"\n",
            3,
            10,
            "tenants[0].advice",
            "the names are allowed, forbidden",
        ),
        (
            "[[tenants]]\ntenant = \"a\"\nadvice = \"allowed\"\n[[tenants]]\ntenant = \"a\"\nadvice = \"forbidden\"\n",
            6,
            10,
            "tenants[1].advice",
            "the advice allowed, this one forbidden",
        ),
        (
            "[[driver.sim.devices]]\nmemory = \"1MiB\"\n",
            2,
            10,
            "driver.sim.devices[0].memory",
            "less than 2 MiB",
        ),
        ("[driver.sim]\ndevices = []\n", 2, 11, "driver.sim.devices", "at least one device"),
        (
            "[[driver.sim.faults]]\non = \"release\"\neffect = \"fail\"\n",
            1,
            1,
            "driver.sim.faults[0]",
            "cannot fail",
        ),
        (
            "[[driver.sim.revocations]]\nat = \"pin\"\nnth = 0\n",
            3,
            7,
            "driver.sim.revocations[0].nth",
            "nonzero",
        ),
        (
            "[[driver.sim.faults]]\non = \"create\"\neffect = \"delay\"\n",
            1,
            1,
            "driver.sim.faults[0]",
            "delay_ms",
        ),
        (
            "[[driver.sim.faults]]\non = \"create\"\neffect = \"hold\"\n",
            1,
            1,
            "driver.sim.faults[0]",
            "needs `until_file`",
        ),
        (
            "[[driver.sim.faults]]\non = \"create\"\neffect = \"fail\"\nuntil_file = \"/tmp/x\"\n",
            1,
            1,
            "driver.sim.faults[0]",
            "`until_file` is for effect `hold`",
        ),
        (
            "[telemetry]\nprometheus_listen = \"9464\"\n",
            2,
            21,
            "telemetry.prometheus_listen",
            "socket address",
        ),
        ("[disk]\ndirectory = 3\n", 2, 13, "disk.directory", "invalid type"),
        ("[shares]\ndemand_percent = 31\n", 2, 18, "shares.demand_percent", "101 percent of a link"),
        (
            "[shares]\nwrite_back_percent = 40\nprefetch_percent = 31\n",
            3,
            20,
            "shares.prefetch_percent",
            "101 percent",
        ),
        ("[shares]\nprefetch_percent = 256\n", 2, 20, "shares.prefetch_percent", "306 percent"),
        ("[shares]\ndemand_percent = -1\n", 2, 18, "shares.demand_percent", "-1"),
        ("[shares]\neviction_percent = 1\n", 2, 1, "shares.eviction_percent", "unknown field"),
        ("[pressure]\nhigh_percent = 101\n", 2, 16, "pressure.high_percent", "between 1 and 100"),
        ("[pressure]\nelevated_percent = 0\n", 2, 20, "pressure.elevated_percent", "between 1 and 100"),
        ("[pressure]\nevict_to_percent = 0\n", 2, 20, "pressure.evict_to_percent", "between 1 and 100"),
        ("[pressure]\nfall_percent = -1\n", 2, 16, "pressure.fall_percent", "invalid value"),
        ("[pressure]\ncold_after_ms = \"1s\"\n", 2, 17, "pressure.cold_after_ms", "invalid type"),
        ("[pressure]\nelevated_percent = 90\n", 2, 20, "pressure.elevated_percent", "90 percent, then 90"),
        ("[pressure]\n\nhigh_percent = 80\n", 3, 16, "pressure.high_percent", "80 percent, then 80"),
        ("[pressure]\ncritical_percent = 90\n", 2, 20, "pressure.critical_percent", "90 percent, then 90"),
        ("[pressure]\nhigh_percent = 95\n", 2, 16, "pressure.high_percent", "95 percent, then 95"),
        ("[pressure]\nfall_percent = 5\n", 2, 16, "pressure.fall_percent", "begins only 5 below"),
        ("[pressure]\nelevated_percent = 3\n", 2, 20, "pressure.elevated_percent", "begins only 3 below"),
        ("[pressure]\nhigh_percent = 92\n", 2, 16, "pressure.high_percent", "begins only 3 below"),
        ("[pressure]\ncritical_percent = 93\n", 2, 20, "pressure.critical_percent", "begins only 3 below"),
        ("[pressure]\nevict_to_percent = 87\n", 2, 20, "pressure.evict_to_percent", "left only below 87"),
        ("[pressure]\nhigh_percent = 88\n", 2, 16, "pressure.high_percent", "left only below 85"),
        (
            "[pressure]\nfall_percent = 8\ncritical_percent = 99\nelevated_percent = 80\n",
            2,
            16,
            "pressure.fall_percent",
            "left only below 82",
        ),
        ("[telemetry]\notlp_endpoint = \"collector:4317\"\n", 2, 17, "telemetry.otlp_endpoint", "begin with"),
        ("[telemetry]\notlp_endpoint = \"https://a\"\n", 2, 17, "telemetry.otlp_endpoint", "TLS"),
        ("[telemetry]\notlp_endpoint = \"http://\"\n", 2, 17, "telemetry.otlp_endpoint", "is not a URL"),
        ("[telemetry]\notlp_protocol = \"thrift\"\n", 2, 17, "telemetry.otlp_protocol", "unknown variant"),
        (
            "[telemetry]\notlp_signals = [\"profiles\"]\n",
            2,
            17,
            "telemetry.otlp_signals[0]",
            "unknown variant",
        ),
        (
            "[telemetry]\ntraces_sample_ratio = 1.5\n",
            2,
            23,
            "telemetry.traces_sample_ratio",
            "is not between 0",
        ),
        (
            "[telemetry]\ntraces_sample_ratio = nan\n",
            2,
            23,
            "telemetry.traces_sample_ratio",
            "is not between 0",
        ),
        ("[telemetry]\nexport_interval_ms = 0\n", 2, 22, "telemetry.export_interval_ms", "at least 1 ms"),
        ("[telemetry]\ncardinality_max = 5\n", 2, 19, "telemetry.cardinality_max", "is not between"),
        ("[daemon\n", 1, 8, "", "unclosed table"),
    ] {
        let location = parse(text).expect_err(text);
        assert!(location.problem.contains(problem), "{text}: {location}");
        assert_eq!(
            (location.line, location.column, location.field.as_str()),
            (line, column, field),
            "{text}: {location}"
        );
    }
}

#[test]
fn an_error_reads_like_a_compiler_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vramd.toml");
    std::fs::write(&path, "[memory]\nmargin = \"1 apple\"\n").unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}:2:10: memory.margin: `1 apple` has an unknown unit", path.display())),
        "{error}"
    );
    assert!(matches!(load(&dir.path().join("none")), Err(ConfigError::Unreadable { .. })));
}

#[test]
fn bytes_that_are_not_utf8_have_a_location() {
    let location = parse_bytes(b"[daemon]\n# gr\xc3\xb6\xff\n").unwrap_err();
    assert_eq!((location.line, location.column, location.problem.as_str()), (2, 6, "this byte is not UTF-8"));
}
