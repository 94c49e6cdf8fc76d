// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import "bytes"

// walk is a way through the batches of a segment, in its bytes.
type walk struct {
	b    []byte
	seed uint32

	end    int64 // of the last whole batch: where the mark stands, or belongs
	next   LSN   // the record that follows
	marked bool  // a mark stands at end
	sealed bool  // the records go on in another segment

	records, bytes int64
	bad            *damage // what stands at end and cannot be read; nil: nothing does
}

// damage is a part of a segment that cannot be read.
type damage struct {
	from, to int64 // the bytes that would have to be right
	lsn      LSN
	why      string
}

// newWalk starts behind the header.
func newWalk(b []byte, h header) walk {
	return walk{b: b, seed: h.seed, end: headerSize, next: h.lsn}
}

// run visits all records that can be read. The error is that of visit.
func (w *walk) run(visit func(Record) error) error {
	for w.bad == nil && w.mark() {
		f, ok := w.frame(w.end + frameSize)
		switch {
		case ok && f.kind == endFrame:
			w.sealed = true
			return nil
		case !ok || f.kind != batchFrame:
			w.stop(w.end+frameSize, "the head of a batch is not what was written")
			return nil
		}
		if w.check(f); w.bad != nil {
			return nil
		}
		if err := w.visit(f, visit); err != nil {
			return err
		}
	}
	return nil
}

// frame reads a frame that has to fit what stands before it.
func (w *walk) frame(at int64) (f frame, ok bool) {
	f, ok = frameAt(w.b, at, w.seed)
	return f, ok && f.lsn == w.next
}

func (w *walk) mark() bool {
	f, ok := w.frame(w.end)
	if w.marked = ok && f.kind == markFrame; !w.marked {
		w.stop(w.end, "the mark before a batch is not what was written")
	}
	return w.marked
}

// stop ends the walk at a frame that is not one. If only zeros follow, it is the end of what was written.
func (w *walk) stop(at int64, why string) {
	if at < int64(len(w.b)) && !allZero(w.b[at:]) {
		w.bad = &damage{at, min(at+frameSize, int64(len(w.b))), w.next, why}
	}
}

// check looks at all records of a batch before one of them is visited: it is there as a whole or not at all.
func (w *walk) check(f frame) {
	from := f.offset + frameSize
	to := from + int64(f.length)
	if to >= int64(len(w.b)) {
		w.bad = &damage{f.offset, f.offset + frameSize, w.next, "the batch is longer than the file"}
		return
	}
	body := w.b[from:to]
	for i := range f.count {
		_, rest, ok := recordAt(body, w.seed)
		if !ok {
			at := to - int64(len(body))
			w.bad = &damage{at, extent(w.b, at, to), w.next + LSN(i), "the record is not what was written"}
			return
		}
		body = rest
	}
	if len(body) != 0 || w.b[to] != endByte {
		last := w.next + LSN(f.count) - 1 //nolint:gosec // a count
		w.bad = &damage{to - int64(len(body)), to + 1, last, "the end of the batch is not what was written"}
	}
}

// extent returns where a record that begins at an offset would end: within its batch.
func extent(b []byte, at, to int64) int64 {
	if to-at < recordSize {
		return to + 1
	}
	return min(at+recordSize+int64(little.Uint32(b[at:])), to+1)
}

func (w *walk) visit(f frame, visit func(Record) error) error {
	body := w.b[f.offset+frameSize:][:f.length]
	for range f.count {
		r := Record{LSN: w.next, Kind: body[8]}
		n := recordSize + int(little.Uint32(body)) // check has seen all of it
		r.Data, body = body[recordSize:n:n], body[n:]
		w.next++
		w.records++
		w.bytes += int64(len(r.Data))
		if err := visit(r); err != nil {
			return err
		}
	}
	w.end = f.offset + frameSize + int64(f.length) + 1
	return nil
}

// lost says why what cannot be read was covered by a sync, or "" if it is the rest of a batch that was being written when
// the process or the machine ended. It is asked about the newest segment only: in the others everything was covered.
func (w *walk) lost() string {
	if w.bad == nil {
		return ""
	}
	if at := w.laterMark(w.bad.from + 1); at >= 0 {
		return "it was on the disk before what follows it was written"
	}
	if !w.marked && allZero(w.b[w.bad.to:]) {
		return "" // the last mark, which protects the batch before it, and that one is right
	}
	if !w.torn() {
		return "all of it was written, and then changed"
	}
	return ""
}

// laterMark finds a mark behind damage: it was written after a sync of everything before it. A value that looks like one
// is none: it has the offset and the seed of the file.
func (w *walk) laterMark(from int64) int64 {
	for _, kind := range [][4]byte{markFrame, endFrame} {
		for at := from; ; at++ {
			i := bytes.Index(w.b[at:], kind[:])
			if i < 0 {
				break
			}
			at += int64(i)
			if f, ok := frameAt(w.b, at, w.seed); ok && f.lsn >= w.next {
				return at
			}
		}
	}
	return -1
}

// torn reports whether a write that did not reach the disk as a whole explains the damage. The file was full of zeros, and a
// disk writes whole sectors: then a sector of the damaged part is still zero. A batch that was written has no such sector
// unless a value has, since its first and its last byte are not zero.
func (w *walk) torn() bool {
	begin := w.end // of what was written at once
	if w.marked {
		begin += frameSize
	}
	for at := w.bad.from / sector * sector; at < w.bad.to; at += sector {
		if allZero(w.b[max(at, begin):min(at+sector, int64(len(w.b)))]) {
			return true
		}
	}
	return false
}
