use super::*;

#[test]
fn a_dropped_buffer_gives_its_frame_back() {
    let umem = Umem::new(600, 2048).unwrap();
    let pool = Pool::new(&umem, 300).unwrap();
    let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!((all.len(), pool.buffers()), (300, 300), "as many as were promised");
    for (n, buffer) in all.iter_mut().enumerate() {
        assert!(buffer.fill(&(n as u32).to_ne_bytes()));
    }
    for (n, buffer) in all.iter().enumerate() {
        assert_eq!(buffer.data(), (n as u32).to_ne_bytes(), "frames are distinct");
    }
    all.clear();
    assert_eq!(pool.buffers(), 0);
    assert!(umem.free_frames() >= 600 - KEPT as u32);
    drop(pool);
    assert_eq!(umem.free_frames(), 600);
}

#[test]
fn a_buffer_outlives_its_pool() {
    let umem = Umem::new(300, 2048).unwrap();
    let pool = Pool::new(&umem, 4).unwrap();
    let mut buffer = pool.allocate().unwrap();
    drop(pool);
    assert!(buffer.fill(b"still here"));
    assert_eq!(umem.free_frames(), 299);
    assert_eq!(umem.promised_frames(), 260, "promised until the last buffer is gone");
    drop(buffer);
    assert_eq!((umem.free_frames(), umem.promised_frames()), (300, 0));
}

#[test]
fn a_packet_grows_and_shrinks_within_its_frame() {
    let umem = Umem::new(300, 2048).unwrap();
    let pool = Pool::new(&umem, 4).unwrap();
    let mut buffer = pool.allocate().unwrap();
    assert_eq!((buffer.head_room(), buffer.tail_room(), buffer.is_empty()), (256, 2048 - 256, true));
    assert!(buffer.fill(&[7; 100]));
    assert!(buffer.set_range(200..400));
    assert_eq!((buffer.len(), buffer.head_room(), buffer.tail_room()), (200, 200, 2048 - 400));
    assert_eq!(buffer.data()[56..156], [7; 100]);
    let (frame, range) = buffer.parts_mut();
    assert_eq!((frame.len(), range), (2048, 200..400));
    let (start, end) = (8, 7);
    assert!(!buffer.set_range(2000..2049) && !buffer.set_range(start..end) && !buffer.fill(&[0; 1849]));
    assert_eq!(buffer.len(), 200, "refused, and unchanged");
    assert!(buffer.set_range(0..2048));
}
