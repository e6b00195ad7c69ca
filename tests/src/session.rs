//! A session without an SDK: it answers the protocol step by step, and stops wherever a test wants it to.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use rustix::io::Errno;
use vramd_proto::{
    channel::{FEATURES, PARTS_PER_FRAME_MAX, PRESSURE, PROTOCOL_MAJOR, PROTOCOL_MINOR, feature_bit},
    v1::{
        Access, AllocateBatchRequest, Allocation, AllocationSpec, AttachRequest, DetachRequest, Feature,
        FreeBatchRequest, FreeBatchResponse, Hello, Lifetime, MapPart, Mapped, PartRef, Pin, PinEnded,
        ReleaseResult, Revoke, RevokeReason, SealRequest, UnmapReason, Unmapped, UnmappedPart, Welcome,
        WordsMapped, attach_request::Target, client_frame, daemon_frame,
    },
};
use vramd_words::Waiting;

use crate::{
    channel::{Packet, RawChannel},
    mapping::Mapping,
    refusal::Refused,
    rpc::{Memory, Pending},
    wait::PATIENCE,
    words::WordTable,
};

/// A session of the test's own process.
#[derive(Debug)]
pub struct RawSession {
    pub channel: RawChannel,
    pub welcome: Welcome,
    pub memory: Memory,
    mapped: BTreeMap<(u64, u32), Mapping>,
    /// The word table of a session with pins.
    pub words: Option<WordTable>,
    /// The slots of parts that have one.
    pub slots: BTreeMap<(u64, u32), u32>,
    /// Unmapped parts whose words said that they were written.
    written: BTreeSet<(u64, u32)>,
    /// The pins that a part gets when it is mapped.
    pub pins_on_map: u32,
    last_call: u64,
    spans: BTreeMap<u64, u64>,
}

/// Received parts that are not mapped yet.
pub type Parcel = Vec<(MapPart, OwnedFd)>;

/// An allocation without a name that ends with its session.
pub fn spec(size_bytes: u64) -> AllocationSpec {
    AllocationSpec { size_bytes, ..Default::default() }
}

/// A named allocation that stays once it is sealed.
pub fn persistent(name: &str, size_bytes: u64) -> AllocationSpec {
    AllocationSpec { name: Some(name.to_owned()), lifetime: Lifetime::Persistent.into(), ..spec(size_bytes) }
}

/// The hello of a client with pins, which is not told of pressure.
pub fn hello_with_pins() -> Hello {
    Hello { features: FEATURES & !PRESSURE, ..hello() }
}

/// The hello of a client without pins.
pub fn hello() -> Hello {
    Hello {
        protocol_major: PROTOCOL_MAJOR,
        protocol_minor: PROTOCOL_MINOR,
        features: feature_bit(Feature::StandingMappings),
        any_device: true,
        client_name: "test".to_owned(),
        ..Default::default()
    }
}

impl RawSession {
    #[track_caller]
    pub fn open(socket_dir: &Path) -> Self {
        Self::open_with(socket_dir, hello()).unwrap_or_else(|refused| panic!("no session: {refused:?}"))
    }

    /// Opens a session with pins, and maps its word table.
    #[track_caller]
    pub fn open_with_pins(socket_dir: &Path) -> Self {
        Self::open_with(socket_dir, hello_with_pins())
            .unwrap_or_else(|refused| panic!("no session: {refused:?}"))
    }

    #[track_caller]
    pub fn open_with(socket_dir: &Path, hello: Hello) -> Result<Self, Refused> {
        let channel = RawChannel::connect(socket_dir).expect("the channel's socket is there");
        // A daemon that refuses before it reads may have closed already. Its refusal can still be read.
        let sent = channel.send(client_frame::Frame::Hello(hello));
        assert!(matches!(sent, Ok(()) | Err(Errno::PIPE)), "a hello can be sent: {sent:?}");
        match channel.receive(PATIENCE) {
            Packet::Frame(daemon_frame::Frame::Welcome(welcome), fds) => {
                let mut session = Self::from_welcome(socket_dir, channel, welcome);
                session.map_words(&fds);
                Ok(session)
            }
            Packet::Frame(daemon_frame::Frame::Refused(refused), _) => Err(Refused::from_frame(refused)),
            other => panic!("neither welcome nor refused: {other:?}"),
        }
    }

    /// A session whose hello was sent and answered on that channel.
    pub fn from_welcome(socket_dir: &Path, channel: RawChannel, welcome: Welcome) -> Self {
        let memory = Memory::new(socket_dir);
        Self {
            channel,
            welcome,
            memory,
            mapped: BTreeMap::new(),
            words: None,
            slots: BTreeMap::new(),
            written: BTreeSet::new(),
            pins_on_map: 0,
            last_call: 0,
            spans: BTreeMap::new(),
        }
    }

    /// Maps the word table that came with the welcome, if the session has pins.
    #[track_caller]
    pub fn map_words(&mut self, fds: &[OwnedFd]) {
        let slots = self.welcome.slot_count;
        if slots > 0 {
            let [table] = fds else { panic!("a word table has one descriptor: {fds:?}") };
            self.words = Some(WordTable::map(table, slots));
            self.send(client_frame::Frame::WordsMapped(WordsMapped {}));
        }
    }

    #[track_caller]
    pub fn send(&self, frame: client_frame::Frame) {
        self.channel.send(frame).expect("the channel stands");
    }

    pub fn id(&self) -> u64 {
        self.welcome.session_id
    }

    pub fn tenant(&self) -> &str {
        &self.welcome.tenant
    }

    /// A request for these items, which the caller may change before sending it.
    pub fn request(&self, items: Vec<AllocationSpec>) -> AllocateBatchRequest {
        AllocateBatchRequest { session_id: self.id(), items, ..Default::default() }
    }

    /// Allocates, maps and acknowledges.
    #[track_caller]
    pub fn allocate(&mut self, spec: AllocationSpec) -> Allocation {
        let allocation = self.reserve(spec);
        self.map_all(allocation.allocation_id);
        allocation
    }

    /// Allocates, and leaves the packets on the channel unread.
    #[track_caller]
    pub fn reserve(&self, spec: AllocationSpec) -> Allocation {
        let answer = self.memory.allocate_batch(self.request(vec![spec])).ok();
        answer.allocations.into_iter().next().expect("one item has one answer")
    }

    #[track_caller]
    pub fn refused(&self, spec: AllocationSpec) -> Refused {
        self.memory.allocate_batch(self.request(vec![spec])).refused()
    }

    /// Reads `map` frames until all parts of the allocation are mapped.
    #[track_caller]
    pub fn map_all(&mut self, allocation: u64) {
        while !self.is_mapped(allocation) {
            let parcel = self.receive_map();
            self.accept(parcel);
        }
    }

    #[track_caller]
    pub fn receive_map(&self) -> Parcel {
        loop {
            match self.channel.receive(PATIENCE) {
                Packet::Frame(daemon_frame::Frame::Map(map), fds) => {
                    assert_eq!(map.parts.len(), fds.len(), "each part has its descriptor");
                    return map.parts.into_iter().zip(fds).collect();
                }
                Packet::Frame(daemon_frame::Frame::Revoke(revoke), _) if self.is_answered(&revoke) => {}
                Packet::Frame(daemon_frame::Frame::Drain(_), _) => {}
                other => panic!("not a map frame: {other:?}"),
            }
        }
    }

    #[track_caller]
    pub fn receive_revoke(&self) -> Revoke {
        loop {
            match self.channel.receive(PATIENCE) {
                Packet::Frame(daemon_frame::Frame::Revoke(revoke), _) if self.is_answered(&revoke) => {}
                Packet::Frame(daemon_frame::Frame::Revoke(revoke), _) => return revoke,
                Packet::Frame(daemon_frame::Frame::Drain(_), _) => {}
                other => panic!("not a revoke frame: {other:?}"),
            }
        }
    }

    /// Whether no part of the revoke is mapped. A revoke can cross the report that makes it needless, since calls and
    /// channel are two sockets.
    fn is_answered(&self, revoke: &Revoke) -> bool {
        !revoke.parts.iter().any(|part| self.mapped.contains_key(&(part.allocation_id, part.part_index)))
    }

    /// Maps parts and acknowledges them.
    #[track_caller]
    pub fn accept(&mut self, parcel: Parcel) {
        let parts = self.map(parcel);
        self.acknowledge(parts);
    }

    /// Maps parts without an acknowledgement.
    #[track_caller]
    pub fn map(&mut self, parcel: Parcel) -> Vec<PartRef> {
        let mut parts = Vec::new();
        for (map, fd) in parcel {
            let writable = map.access() == Access::ReadWrite;
            let part = map.part.expect("a mapped part has a name");
            let mapping =
                Mapping::new(fd.as_fd(), map.size_bytes, map.offset_bytes, writable).expect("a part maps");
            let known = self.mapped.insert((part.allocation_id, part.part_index), mapping);
            assert!(known.is_none(), "the daemon maps a part only where it is not mapped");
            self.written.remove(&(part.allocation_id, part.part_index));
            self.spans.insert(part.allocation_id, map.span_bytes);
            if let Some(words) = &self.words {
                self.slots.insert((part.allocation_id, part.part_index), map.slot);
                let waiting = Waiting { readers: self.pins_on_map, writers: 0 };
                words.worker(map.slot).set_mapped(waiting).expect("the daemon maps what is absent");
            }
            parts.push(part);
        }
        parts
    }

    #[track_caller]
    pub fn acknowledge(&self, parts: Vec<PartRef>) {
        self.channel.send(client_frame::Frame::Mapped(Mapped { parts })).expect("the channel stands");
    }

    /// Whether every byte of its span is mapped here.
    pub fn is_mapped(&self, allocation: u64) -> bool {
        let mapped: u64 = self.parts(allocation).map(|mapping| mapping.bytes().len() as u64).sum();
        self.spans.get(&allocation) == Some(&mapped)
    }

    /// Its mapped parts in order.
    pub fn parts(&self, allocation: u64) -> impl Iterator<Item = &Mapping> {
        self.mapped.range((allocation, 0)..=(allocation, u32::MAX)).map(|(_, mapping)| mapping)
    }

    /// Writes the requested bytes.
    #[track_caller]
    pub fn write(&mut self, allocation: u64, content: &[u8]) {
        let mut rest = content;
        for (_, mapping) in self.mapped.range_mut((allocation, 0)..=(allocation, u32::MAX)) {
            let bytes = mapping.bytes_mut();
            let (now, later) = rest.split_at(rest.len().min(bytes.len()));
            bytes[..now.len()].copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty(), "the content is longer than what is mapped");
    }

    /// The digest of the first `size` mapped bytes, as the daemon prints it.
    pub fn digest(&self, allocation: u64, size: u64) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut rest = usize::try_from(size).expect("a test's allocation fits in memory");
        for mapping in self.parts(allocation) {
            let bytes = &mapping.bytes()[..rest.min(mapping.bytes().len())];
            hasher.update(bytes);
            rest -= bytes.len();
        }
        assert_eq!(rest, 0, "less is mapped than was asked for");
        format!("blake3:{}", hasher.finalize())
    }

    /// Seals: answers the revoke, waits for the digest, maps again.
    #[track_caller]
    pub fn seal(&mut self, allocation: u64) -> Allocation {
        let request =
            SealRequest { session_id: self.id(), request_id: Vec::new(), allocation_id: allocation };
        let pending = self.memory.seal(request);
        while self.parts(allocation).next().is_some() {
            let revoke = self.receive_revoke();
            assert_eq!(revoke.reason(), RevokeReason::Sealing);
            self.unmap_parts(revoke.parts);
        }
        let sealed = pending.ok().allocation.expect("a sealed allocation is told");
        self.map_all(allocation);
        sealed
    }

    /// Attaches and maps.
    #[track_caller]
    pub fn attach(&mut self, name: &str) -> Allocation {
        let answer = self.memory.attach(self.attach_request(name)).ok();
        let allocation = answer.allocation.expect("an answer describes the attached allocation");
        self.map_all(allocation.allocation_id);
        allocation
    }

    #[track_caller]
    pub fn attach_refused(&self, name: &str) -> Refused {
        self.memory.attach(self.attach_request(name)).refused()
    }

    pub fn attach_request(&self, name: &str) -> AttachRequest {
        let target = Some(Target::Name(name.to_owned()));
        AttachRequest { session_id: self.id(), target, ..Default::default() }
    }

    /// Unmaps all of an allocation without being asked.
    #[track_caller]
    pub fn unmap(&mut self, allocation: u64) {
        let parts = self.mapped.range((allocation, 0)..=(allocation, u32::MAX));
        let parts =
            parts.map(|(&(allocation_id, part_index), _)| PartRef { allocation_id, part_index }).collect();
        self.unmap_parts(parts);
    }

    #[track_caller]
    pub fn unmap_parts(&mut self, parts: Vec<PartRef>) {
        self.unmap_without_report(&parts);
        self.report_unmapped(&parts);
    }

    /// Unmaps parts without a report. In a session with pins none of them may be pinned.
    pub fn unmap_without_report(&mut self, parts: &[PartRef]) {
        for part in parts {
            let part = (part.allocation_id, part.part_index);
            if self.mapped.contains_key(&part)
                && let Some((words, slot)) = self.words.as_ref().zip(self.slots.get(&part))
            {
                let word = words.worker(*slot);
                let unmapping = word.begin_unmap_revoked().or_else(|_| word.begin_unmap());
                self.mapped.remove(&part);
                if unmapping.expect("no pin is left").finish() {
                    self.written.insert(part);
                }
            }
            self.mapped.remove(&part);
        }
    }

    /// The slot of a part that this session maps, or has mapped.
    #[track_caller]
    pub fn slot(&self, allocation: u64, part: u32) -> u32 {
        *self.slots.get(&(allocation, part)).expect("a part that was mapped with pins has a slot")
    }

    #[track_caller]
    pub fn word_table(&self) -> &WordTable {
        self.words.as_ref().expect("the session has pins")
    }

    /// Sends a call for a pin set, and returns its number.
    #[track_caller]
    pub fn pin(&mut self, parts: Vec<PartRef>) -> u64 {
        self.send_pin(parts, None)
    }

    /// The same with a deadline of this many milliseconds.
    #[track_caller]
    pub fn pin_within(&mut self, parts: Vec<PartRef>, wait_ms: u64) -> u64 {
        self.send_pin(parts, Some(wait_ms))
    }

    #[track_caller]
    fn send_pin(&mut self, parts: Vec<PartRef>, wait_ms: Option<u64>) -> u64 {
        self.last_call += 1;
        let call_id = self.last_call;
        self.send(client_frame::Frame::Pin(Pin { call_id, parts, write: false, trace: None, wait_ms }));
        call_id
    }

    #[track_caller]
    pub fn end_pin_call(&self, call_id: u64) {
        self.send(client_frame::Frame::PinEnded(PinEnded { call_id }));
    }

    /// Maps received parts until that call is answered.
    #[track_caller]
    pub fn pin_answer(&mut self, call: u64) -> Result<(), Refused> {
        loop {
            match self.channel.receive(PATIENCE) {
                Packet::Frame(daemon_frame::Frame::PinAnswer(answer), _) => {
                    assert_eq!(answer.call_id, call);
                    return answer.refused.map_or(Ok(()), |refused| Err(Refused::from_frame(refused)));
                }
                Packet::Frame(daemon_frame::Frame::Map(map), fds) => {
                    let parcel = map.parts.into_iter().zip(fds).collect();
                    self.accept(parcel);
                }
                Packet::Frame(daemon_frame::Frame::Revoke(revoke), _) if self.is_answered(&revoke) => {}
                other => panic!("no answer to the pin: {other:?}"),
            }
        }
    }

    #[track_caller]
    pub fn report_unmapped(&self, parts: &[PartRef]) {
        for parts in parts.chunks(PARTS_PER_FRAME_MAX) {
            let done = UnmapReason::Done.into();
            let parts = parts.iter().map(|&part| UnmappedPart {
                part: Some(part),
                reason: done,
                written: self.written.contains(&(part.allocation_id, part.part_index)),
                ..Default::default()
            });
            let frame = client_frame::Frame::Unmapped(Unmapped { parts: parts.collect() });
            self.channel.send(frame).expect("the channel stands");
        }
    }

    /// Unmaps and frees.
    #[track_caller]
    pub fn free(&mut self, allocation: u64) -> ReleaseResult {
        self.begin_free(allocation).ok().results.into_iter().next().expect("one item has one answer")
    }

    /// Unmaps and asks for the free, whose answer may have to wait for the driver.
    #[track_caller]
    pub fn begin_free(&mut self, allocation: u64) -> Pending<FreeBatchResponse> {
        self.unmap(allocation);
        let request = FreeBatchRequest {
            session_id: self.id(),
            request_id: Vec::new(),
            allocation_ids: vec![allocation],
        };
        self.memory.free_batch(request)
    }

    /// Unmaps and detaches.
    #[track_caller]
    pub fn detach(&mut self, allocation: u64) -> ReleaseResult {
        self.unmap(allocation);
        let request =
            DetachRequest { session_id: self.id(), request_id: Vec::new(), allocation_ids: vec![allocation] };
        self.memory.detach(request).ok().results.into_iter().next().expect("one item has one answer")
    }
}
