//! Pin sets that are larger than their tenant's limit.

use vramd_tests::{Daemon, MIB_2, RawSession, content, digest};
use vramd_types::Reason;

use crate::has_other_users;
use crate::moves::{assert_nothing_left, evict, fetch_by_pin, part, tiers, until_charged};

const SIZE: u64 = 4 * MIB_2;

#[test]
fn a_pin_set_beyond_the_limit_of_the_parts_tenant_is_refused() {
    if !has_other_users("a_pin_set_beyond_the_limit_of_the_parts_tenant_is_refused") {
        return;
    }
    let daemon = Daemon::start(&tiers("16MiB", "16MiB").tenant(20_001, "team-a"));
    let mut reader = RawSession::open_with_pins(&daemon.sockets());
    let mut owner = daemon.probe_as(20_001);
    owner.ask("sdk open");
    let asked =
        format!("sdk allocate {SIZE} name=weights persistent reader={} part={MIB_2}", reader.tenant());
    let id = owner.ask(&asked)["allocation"].as_u64().unwrap();
    owner.ask("sdk write 3");
    owner.ask("sdk seal");
    owner.ask("sdk keep");
    reader.attach("team-a/weights");
    evict(&daemon, &mut reader, id);
    // A part that has left stays charged until the driver returns its memory.
    until_charged(&daemon, 0, 8);
    daemon.set_quota("team-a", "", "4MiB");
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    let state = daemon.settled_state();

    // The reader learns nothing else about the tenant.
    let call = reader.pin((0..4).map(|index| part(id, index)).collect());
    let refused = reader.pin_answer(call).unwrap_err();
    let refused = refused.is(Reason::SetTooLarge);
    let told = format!(
        "the set needs 8 MiB of another tenant's memory in tier device of {uuid} at once, which is more than that tenant can have there. Pin fewer parts at a time"
    );
    assert_eq!(refused.message, told);
    let facts = ["device", "tier", "asked"].map(|fact| refused.fact(fact));
    assert_eq!(facts, [&*uuid, "device", "8388608"]);
    // The tenant that pays learns its figures.
    let refused = owner.refused("sdk pin 0");
    let refused = refused.is(Reason::QuotaLimit);
    let facts = ["tenant", "device", "tier", "limit", "held", "asked"].map(|fact| refused.fact(fact));
    assert_eq!(facts, ["team-a", &uuid, "device", "4194304", "0", "8388608"]);
    assert_eq!(daemon.state(), state, "nothing has moved");

    let bytes = content(SIZE, 3);
    let size = usize::try_from(MIB_2).unwrap();
    let written = |index: u32| &bytes[index as usize * size..][..size];
    for two in [[0, 1], [2, 3]] {
        let call = reader.pin(two.map(|index| part(id, index)).into());
        reader.pin_answer(call).expect("that is what the tenant may have");
        let found: Vec<_> =
            reader.parts(id).map(|mapping| (mapping.offset, digest(mapping.bytes()))).collect();
        assert_eq!(found, two.map(|index| (u64::from(index) * MIB_2, digest(written(index)))));
        reader.end_pin_call(call);
        evict(&daemon, &mut reader, id);
    }
    daemon.set_quota("team-a", "", "16MiB");
    fetch_by_pin(&mut reader, id, 4);
    assert_eq!(reader.digest(id, SIZE), digest(&bytes));
    owner.ask("sdk pin 0");
    owner.ask("sdk unpin");
    reader.detach(id);
    owner.ask("sdk free");
    owner.leave();
    assert_nothing_left(&daemon);
}
