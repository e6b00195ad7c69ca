//! Follows the frames of an HTTP/2 connection, only so far as to know whether its peer has left one unfinished.

/// The bytes with which each connection begins.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The state after the bytes so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    preface_left: usize,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    payload_left: usize,
    /// Whether further frames of the same headers must follow.
    in_headers: bool,
    /// Headers whose first frame has begun since they were last taken.
    headers: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            preface_left: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            payload_left: 0,
            in_headers: false,
            headers: 0,
        }
    }

    /// Whether the peer must send more: the preface, the rest of a frame, or the rest of headers.
    pub(super) fn is_unfinished(&self) -> bool {
        self.preface_left > 0 || self.head_bytes > 0 || self.payload_left > 0 || self.in_headers
    }

    /// The bytes that are left of the payload that has begun.
    pub(super) fn payload_left(&self) -> usize {
        self.payload_left
    }

    /// Takes the number of headers that have begun.
    pub(super) fn take_headers(&mut self) -> usize {
        std::mem::take(&mut self.headers)
    }

    /// Follows received bytes. Returns whether anything was finished by them.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) -> bool {
        let mut finished = false;
        while !bytes.is_empty() {
            bytes = self.step(bytes);
            finished |= !self.is_unfinished();
        }
        finished
    }

    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.preface_left > 0 {
            let taken = self.preface_left.min(bytes.len());
            self.preface_left -= taken;
            return &bytes[taken..];
        }
        if self.payload_left > 0 {
            let taken = self.payload_left.min(bytes.len());
            self.payload_left -= taken;
            return &bytes[taken..];
        }
        let taken = (HEAD_BYTES - self.head_bytes).min(bytes.len());
        self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&bytes[..taken]);
        self.head_bytes += taken;
        if self.head_bytes == HEAD_BYTES {
            self.head_bytes = 0;
            let [a, b, c, kind, flags, ..] = self.head;
            self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
            self.headers += usize::from(kind == HEADERS);
            if kind == HEADERS || kind == CONTINUATION {
                self.in_headers = flags & END_HEADERS == 0;
            }
        }
        &bytes[taken..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let [.., a, b, c] = u32::try_from(payload).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1][..], &vec![0; payload]].concat()
    }

    #[test]
    fn a_frame_is_finished_by_its_last_byte() {
        let connection =
            [vec![b'x'; PREFACE_BYTES], frame(4, 0, 0), frame(HEADERS, END_HEADERS, 40), frame(0, 0, 300)];
        let mut frames = Frames::new();
        assert!(frames.is_unfinished());
        for part in &connection {
            let (last, others) = part.split_last().unwrap();
            for byte in others {
                assert!(!frames.advance(&[*byte]) && frames.is_unfinished());
            }
            assert!(frames.advance(&[*last]) && !frames.is_unfinished());
        }
        let mut frames = Frames::new();
        assert!(frames.advance(&connection.concat()));
        assert_eq!((frames.take_headers(), frames.take_headers()), (1, 0));
    }

    #[test]
    fn headers_are_finished_by_their_last_frame() {
        let mut frames = Frames::new();
        frames.advance(&[0; PREFACE_BYTES]);
        for part in [frame(HEADERS, 0, 5), frame(CONTINUATION, 0, 5)] {
            assert!(!frames.advance(&part) && frames.is_unfinished());
        }
        assert!(frames.advance(&frame(CONTINUATION, END_HEADERS, 5)) && !frames.is_unfinished());
    }
}
