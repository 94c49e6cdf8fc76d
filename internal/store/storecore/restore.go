// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Restore fills a new machine with what an image holds, through the entry of the given index. It takes no more memory than that beside
// one key, and reads r to its end.
func (m *Machine) Restore(index uint64, r io.Reader) error {
	d := imageReader{r: bufio.NewReaderSize(r, 64<<10), machine: m}
	for !d.ended && d.err == nil {
		d.record()
	}
	if d.err == nil {
		if _, err := d.r.ReadByte(); err != io.EOF {
			d.fail("there is more behind its end")
			if err != nil {
				d.err = err
			}
		}
	}
	m.log.applied = index
	return d.err
}

// imageReader reads an image into a machine.
type imageReader struct {
	r       *bufio.Reader
	machine *Machine
	sizes   imageSizes
	scratch []byte
	begun   bool
	ended   bool
	version uint64
	session *session // the one that was read last
	err     error
}

// longest bounds a string of an image, whose length could be anything in one that is damaged.
const longest = 1 << 31

func (d *imageReader) fail(what string) {
	if d.err == nil {
		d.err = cohort.New("tcpstore: restore", cohort.Protocol, "a snapshot of a store cannot be read: "+what)
	}
}

func (d *imageReader) failed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		d.fail("it ends too early")
	} else if d.err == nil {
		d.err = err
	}
}

func (d *imageReader) record() {
	kind, err := d.r.ReadByte()
	switch {
	case err != nil:
		d.failed(err)
	case !d.begun && kind != 'S':
		d.fail("it does not begin with its version")
	default:
		d.read(kind)
	}
}

func (d *imageReader) read(kind byte) {
	switch kind {
	case 'S':
		d.head()
	case 'K':
		d.key()
	case 'Q':
		d.queue()
	case 'C', 'R':
		d.claim(kind == 'C')
	case 'N', 'A', 'T', 'L':
		d.ofSession(kind)
	case 'E':
		d.end()
	default:
		d.fail("it has a part of an unknown kind: was it written by a newer version?")
	}
}

func (d *imageReader) end() {
	d.ended = true
	want := imageSizes{keys: d.number(), items: d.number(), claims: d.number()}
	if d.version > 1 {
		want.sessions, want.answers = d.number(), d.number()
	}
	if want != d.sizes {
		d.fail("it does not hold as much as it says")
	}
}

func (d *imageReader) head() {
	if d.version = d.number(); (d.version == 0 || d.version > imageVersion) && d.err == nil {
		d.err = cohort.Newf("tcpstore: restore", cohort.NotSupported,
			"a snapshot of a store has version %d, and this program knows versions up to %d: use a newer one", d.version, imageVersion)
		return
	}
	d.machine.log.era = d.number()
	var raw Identity
	d.fill(raw[:])
	d.machine.run.identity = d.machine.config.Base.mask(raw)
	d.begun = true
}

func (d *imageReader) number() uint64 {
	n, err := binary.ReadUvarint(d.r)
	if err != nil {
		d.failed(err)
	}
	return n
}

func (d *imageReader) fill(b []byte) {
	if _, err := io.ReadFull(d.r, b); err != nil {
		d.failed(err)
	}
}

// length reads the length of a string.
func (d *imageReader) length() int {
	n := d.number()
	if n > longest {
		d.fail("it has a string of an impossible length")
		return 0
	}
	return int(n)
}

// pieceSize is how much memory a string gets before what fills it is there.
const pieceSize = 1 << 20

// bytes reads n bytes behind those of b.
func (d *imageReader) bytes(b []byte, n int) []byte {
	for n > 0 && d.err == nil {
		part := min(n, pieceSize)
		start := len(b)
		b = slices.Grow(b, part)[:start+part]
		d.fill(b[start:])
		n -= part
	}
	return b
}

// string reads a string in memory of its own.
func (d *imageReader) string() []byte { return d.bytes(nil, d.length()) }

func (d *imageReader) key() {
	d.scratch = d.bytes(d.scratch[:0], d.length())
	keyLen, n := len(d.scratch), d.length()
	data := append(make([]byte, 0, keyLen+min(n, pieceSize)), d.scratch...)
	if data = d.bytes(data, n); d.err != nil {
		return
	}
	if d.machine.table.Find(data[:keyLen]) != nil {
		d.fail("it has a key twice")
		return
	}
	d.sizes.keys++
	d.machine.table.Insert(data, keyLen)
}

func (d *imageReader) queue() {
	key := d.string()
	for n := d.number(); n > 0 && d.err == nil; n-- {
		if item := d.string(); d.err == nil {
			d.sizes.items++
			d.machine.put(key, item)
		}
	}
}

func (d *imageReader) claim(held bool) {
	var holder holderID
	if held {
		var b [holderSize]byte
		d.fill(b[:])
		holder = readHolder(b[:])
	}
	name, text, host := d.string(), d.string(), d.string()
	sub := uint32(0)
	if d.version > 1 {
		sub = uint32(d.number()) //nolint:gosec // as it was written
	}
	if d.err != nil {
		return
	}
	m := d.machine
	d.sizes.claims++
	m.seize(nil, holder, nil, string(host), &wire.Request{Key: append([]byte(wire.ClaimPrefix), name...), Value: text, Sub: sub})
	if !held {
		delete(m.claims.byHolder, holderID{})
		m.addReleased(m.claims.byName[string(name)])
	}
}

// Rebase says what the log of a machine that was restored is in. See Config.Base.
func (m *Machine) Rebase(base Identity) {
	m.run.identity = base.mask(m.config.Base.mask(m.run.identity))
	m.config.Base = base
}

// Keys returns how many keys, and queues with items, the store holds.
func (m *Machine) Keys() int { return m.keys() }

// Become gives a machine that was restored another identity, in another log. What clients had under way belongs to the store before.
func (m *Machine) Become(base, identity Identity) {
	m.dropSessions(nil)
	m.config.Base, m.run.identity = base, identity
}
