// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cohort-dist/cohort"
)

// What the bytes mean is in docs/wire/storelog.md; a test compares the two.
const (
	magic  = "cohortlg"
	format = 1 // of what this package writes; it reads all up to it

	headerSize = 128
	frameSize  = 32
	recordSize = 9 // what precedes the data of a record
	endByte    = 0xff

	// sector is the least that a disk writes as a whole.
	sector = 512
	// maxBatch bounds what Write takes at once, and so the memory that a damaged length can ask for.
	maxBatch = 1 << 30
)

var (
	little     = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// role is what a file is.
type role uint32

const (
	identityFile role = 1 + iota
	segmentFile
	snapshotFile
)

// header begins each file. That its first 16 bytes and its last four mean the same in all formats lets every version say of a
// newer file that it is newer.
type header struct {
	role     role
	identity ID
	cluster  ID
	lsn      LSN   // segment: its first record; snapshot: the last record that it covers
	size     int64 // segment: of the file
	salt     uint64
	made     int64 // nanoseconds since 1970

	// seed is the header's checksum. All others of the file start from it, so that bytes of another file are not valid.
	seed uint32
}

// encode returns the bytes and sets the seed.
func (h *header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = little.AppendUint32(b, format)
	b = little.AppendUint32(b, uint32(h.role))
	b = append(b, h.identity[:]...)
	b = append(b, h.cluster[:]...)
	b = little.AppendUint64(b, uint64(h.lsn))
	b = little.AppendUint64(b, uint64(h.size)) //nolint:gosec // not negative
	b = little.AppendUint64(b, h.salt)
	b = little.AppendUint64(b, uint64(h.made)) //nolint:gosec // decode turns it back
	b = b[:headerSize-4]
	h.seed = crc32.Checksum(b, castagnoli)
	return little.AppendUint32(b, h.seed)
}

// newerError is that of a file that a later version has written.
type newerError struct{ format uint32 }

func (e *newerError) Error() string {
	return fmt.Sprintf("it has format %d, and this version of cohort reads formats up to %d: use the version that wrote it, or a later one",
		e.format, format)
}

// decodeHeader reads a header; why says what is wrong with it.
func decodeHeader(b []byte, want role) (h header, why error) {
	if len(b) < headerSize {
		return h, fmt.Errorf("it ends within its header, after %d bytes", len(b))
	}
	b = b[:headerSize]
	h.seed = crc32.Checksum(b[:headerSize-4], castagnoli)
	if string(b[:8]) != magic || h.seed != little.Uint32(b[headerSize-4:]) {
		return h, errors.New("the header is not what was written")
	}
	if f := little.Uint32(b[8:]); f > format {
		return h, &newerError{f}
	}
	h.role = role(little.Uint32(b[12:]))
	copy(h.identity[:], b[16:])
	copy(h.cluster[:], b[32:])
	h.lsn, h.size = LSN(little.Uint64(b[48:])), int64(little.Uint64(b[56:])) //nolint:gosec // from encode
	h.salt, h.made = little.Uint64(b[64:]), int64(little.Uint64(b[72:]))     //nolint:gosec // from encode
	if h.role != want {
		return h, fmt.Errorf("it is a file of type %d, not %d", h.role, want)
	}
	return h, nil
}

// belongs says what is wrong with the header of a file that has a number in its name, in a folder whose own header is given.
func (h *header) belongs(of header, number LSN) error {
	switch {
	case h.identity != of.identity || h.cluster != of.cluster:
		return fmt.Errorf("it is of another store, %x", h.identity)
	case h.lsn != number:
		return fmt.Errorf("its name does not have the number that it was written with, %d", h.lsn)
	}
	return nil
}

// unreadable is the error of a file whose header does not do.
func unreadable(name string, why error) error {
	if newer, ok := errors.AsType[*newerError](why); ok {
		return cohort.Newf(opOpen, cohort.NotSupported, "%s: %w", name, newer)
	}
	return &CorruptError{File: name, Reason: why.Error()}
}

// frame is what stands between the records of a segment.
type frame struct {
	kind   [4]byte
	offset int64 // of the frame itself
	lsn    LSN   // of the record that follows
	length int   // batch: bytes of its records
	count  int   // batch: records
}

var (
	// markFrame says that a sync has covered everything before it. One stands before each batch and after the last one.
	markFrame = [4]byte{'m', 'a', 'r', 'k'}
	// batchFrame begins a batch.
	batchFrame = [4]byte{'b', 't', 'c', 'h'}
	// endFrame says that the records go on in another segment. It is a mark as well.
	endFrame = [4]byte{'n', 'e', 'x', 't'}
)

// appendFrame starts with the kind, which has no zero byte: see torn.
func appendFrame(b []byte, seed uint32, f frame) []byte {
	at := len(b)
	b = append(b, f.kind[:]...)
	b = append(b, 0, 0, 0, 0)
	b = little.AppendUint64(b, uint64(f.offset)) //nolint:gosec // not negative
	b = little.AppendUint64(b, uint64(f.lsn))
	b = little.AppendUint32(b, uint32(f.length)) //nolint:gosec // at most maxBatch
	b = little.AppendUint32(b, uint32(f.count))  //nolint:gosec // fewer than bytes
	little.PutUint32(b[at+4:], frameSum(b[at:], seed))
	return b
}

func frameSum(b []byte, seed uint32) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, b[:4]), castagnoli, b[8:frameSize])
}

// frameAt reads the frame at an offset of a segment; ok says that it was written there.
func frameAt(b []byte, at int64, seed uint32) (f frame, ok bool) {
	if at < 0 || at > int64(len(b))-frameSize {
		return f, false
	}
	b = b[at : at+frameSize]
	f.kind = [4]byte(b)
	f.offset, f.lsn = int64(little.Uint64(b[8:])), LSN(little.Uint64(b[16:])) //nolint:gosec // compared with at
	f.length, f.count = int(little.Uint32(b[24:])), int(little.Uint32(b[28:]))
	return f, f.offset == at && little.Uint32(b[4:]) == frameSum(b, seed) && f.length >= 0 && f.length <= maxBatch
}

// batchSize is what a batch of records takes in a segment, without the mark before it.
func batchSize(batch []Record) int64 {
	n := int64(frameSize + 1)
	for i := range batch {
		n += recordSize + int64(len(batch[i].Data))
	}
	return n
}

// appendBatch writes a batch that begins at an offset of a segment.
func appendBatch(b []byte, seed uint32, at int64, first LSN, batch []Record) []byte {
	length := int(batchSize(batch)) - frameSize - 1
	b = appendFrame(b, seed, frame{batchFrame, at, first, length, len(batch)})
	for i := range batch {
		b = appendRecord(b, seed, &batch[i])
	}
	return append(b, endByte)
}

func appendRecord(b []byte, seed uint32, r *Record) []byte {
	at := len(b)
	b = little.AppendUint32(b, uint32(len(r.Data))) //nolint:gosec // at most maxBatch
	b = append(b, 0, 0, 0, 0, r.Kind)
	b = append(b, r.Data...)
	little.PutUint32(b[at+4:], recordSum(b[at:], seed))
	return b
}

func recordSum(b []byte, seed uint32) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, b[:4]), castagnoli, b[8:])
}

// recordAt reads the record at the start of b; ok says that it was written so.
func recordAt(b []byte, seed uint32) (r Record, rest []byte, ok bool) {
	if len(b) < recordSize {
		return r, b, false
	}
	n := uint64(recordSize) + uint64(little.Uint32(b))
	if n > uint64(len(b)) || little.Uint32(b[4:]) != recordSum(b[:n], seed) {
		return r, b, false
	}
	return Record{Kind: b[8], Data: b[recordSize:n:n]}, b[n:], true
}

var zeros [64 << 10]byte

func allZero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}
