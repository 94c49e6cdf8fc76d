// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
)

// A backup is a file:
//
//	the line "cohort store backup 1" | identity | parts | u32 0 | u32 crc
//	part: u32 length | u32 crc | bytes of an image
//
// A crc is the CRC-32C of all that stands before it in the file, but for the crcs.
const backupLine = "cohort store backup 1\n"

// longestPart bounds a part, whose length could be anything in a file that is damaged.
const longestPart = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Backup writes a backup.
type Backup struct {
	w        io.Writer
	identity storecore.Identity
	sum      uint32
	size     int64
}

// NewBackup returns a backup of a store with an identity.
func NewBackup(w io.Writer, identity storecore.Identity) *Backup {
	return &Backup{w: w, identity: identity}
}

// Size is how many bytes were written.
func (b *Backup) Size() int64 { return b.size }

// Add writes a part of an image.
func (b *Backup) Add(part []byte) error {
	if b.size == 0 {
		if err := b.write(append([]byte(backupLine), b.identity[:]...), true); err != nil {
			return err
		}
	}
	if len(part) == 0 {
		return nil
	}
	return b.part(part)
}

// End writes the end.
func (b *Backup) End() error { return b.part(nil) }

func (b *Backup) part(part []byte) error {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(part))) //nolint:gosec // a reply is shorter
	b.sum = crc32.Update(crc32.Update(b.sum, castagnoli, head), castagnoli, part)
	if err := b.write(binary.LittleEndian.AppendUint32(head, b.sum), false); err != nil {
		return err
	}
	return b.write(part, false)
}

func (b *Backup) write(p []byte, summed bool) error {
	if summed {
		b.sum = crc32.Update(b.sum, castagnoli, p)
	}
	n, err := b.w.Write(p)
	b.size += int64(n)
	return err
}

// backupReader reads the image of a backup.
type backupReader struct {
	r        *bufio.Reader
	identity storecore.Identity
	sum      uint32
	part     []byte
	ended    bool
}

func openBackup(r io.Reader) (*backupReader, error) {
	b := &backupReader{r: bufio.NewReader(r)}
	head := make([]byte, len(backupLine)+len(b.identity))
	if _, err := io.ReadFull(b.r, head); err != nil || string(head[:len(backupLine)]) != backupLine {
		return nil, cohort.New("tcpstore: restore", cohort.InvalidArgument,
			"this is not a backup of a store that this version can read: it does not begin with the line \"cohort store backup 1\"")
	}
	copy(b.identity[:], head[len(backupLine):])
	b.sum = crc32.Update(0, castagnoli, head)
	return b, nil
}

// Read implements io.Reader. It returns io.EOF only behind an end that is right.
func (b *backupReader) Read(p []byte) (int, error) {
	for len(b.part) == 0 {
		if b.ended {
			return 0, io.EOF
		}
		if err := b.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.part)
	b.part = b.part[n:]
	return n, nil
}

func (b *backupReader) next() error {
	var head [8]byte
	if _, err := io.ReadFull(b.r, head[:]); err != nil {
		return damaged(err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > longestPart {
		return damaged(errors.New("a part of an impossible length"))
	}
	part, err := io.ReadAll(io.LimitReader(b.r, int64(n)))
	if err != nil || len(part) < int(n) {
		return damaged(errors.Join(err, io.ErrUnexpectedEOF))
	}
	b.sum = crc32.Update(crc32.Update(b.sum, castagnoli, head[:4]), castagnoli, part)
	if b.sum != binary.LittleEndian.Uint32(head[4:]) {
		return damaged(errors.New("the check sum of a part is wrong"))
	}
	b.part, b.ended = part, n == 0
	return nil
}

func damaged(err error) error {
	return cohort.Newf("tcpstore: restore", cohort.Protocol, "the backup is damaged or not complete: %w", err)
}
