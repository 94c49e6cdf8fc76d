// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Image is what a machine holds at one moment, as a stream of bytes from which Restore makes the same. It is made a part at a time while
// the store is used: what changes before it was written is written first. The bytes are
//
//	'S' version era identity           first
//	'K' key value                      a key
//	'Q' key count items                items of a queue, in their order; a long queue has several of these
//	'C' holder name text host client   a claim that is held; those of a holder in their order
//	'R' name text host client          a claim without a holder; those of a host in their order
//	'N' ...                            a session, see session_image.go
//	'E' keys items claims sessions answers
//
// where numbers are uvarints, strings have their length in front, and a holder is two numbers of eight bytes.
type Image struct {
	Index uint64 // of the last entry that it holds

	machine *Machine
	walk    *keytable.Walk
	queues  []queueImage
	records []sessionImage
	out     []byte // not taken yet
	sizes   imageSizes
	ended   bool
	client  bool  // it is sent to a client, for whom nothing waits
	lost    bool  // the client did not keep up
	takenAt int64 // when the last part was taken
}

// imageSizes is how much an image holds.
type imageSizes struct{ keys, items, claims, sessions, answers uint64 }

type queueImage struct {
	key   string
	items [][]byte // which never change
}

const (
	imageVersion = 2 // 1 had no sessions
	// imagePart is how many bytes of an image are made in one step, and imageMost how many may wait to be taken: then no commands are
	// applied until some are. Without a log nothing can wait, and they grow with what changes.
	imagePart = 64 << 10
	imageMost = 16 << 20
	// queuePart is how many items stand together.
	queuePart = 1 << 10
)

// BeginImage begins an image of what the machine holds now, nil while another one is being made.
func (m *Machine) BeginImage() *Image {
	i := m.beginImage()
	if i != nil && m.log != nil {
		i.records = imagesOf(&m.sessions)
	}
	return i
}

// beginImage is BeginImage without sessions.
func (m *Machine) beginImage() *Image {
	if i := m.image; i != nil && i.client && m.clock.now-i.takenAt > imagePatience {
		i.lost = true
		i.End()
	}
	if m.image != nil {
		return nil
	}
	i := &Image{machine: m, takenAt: m.clock.now}
	era := uint64(0)
	if m.log != nil {
		i.Index, era = m.log.applied, m.log.era
	}
	raw := m.config.Base.mask(m.run.identity)
	i.out = append(binary.AppendUvarint(binary.AppendUvarint(append(i.out, 'S'), imageVersion), era), raw[:]...)
	i.claims(&m.claims)
	for key, q := range m.queues.byKey {
		i.queues = append(i.queues, queueImage{key, slices.Clone(q.items[q.first:])})
		i.sizes.items += uint64(q.len()) //nolint:gosec // not negative
	}
	i.walk = m.table.WalkValues(i.key)
	m.image = i
	return i
}

// imagePatience is for how long a client may leave the next part of an image, if another one is to be made.
const imagePatience = int64(30 * time.Second)

// full reports whether commands have to wait until more of the image is taken.
func (i *Image) full() bool { return len(i.out) > imageMost && !i.client }

// Next returns the next part, which the caller owns, and whether there are more. It is called in a step of the machine.
func (i *Image) Next() (part []byte, more bool) {
	i.machine.turn.work += sliceWork
	i.takenAt = i.machine.clock.now
	for len(i.out) < imagePart && !i.walk.Done() {
		if e, _, ok := i.walk.Next(); ok {
			i.key(e)
		}
	}
	for len(i.out) < imagePart && len(i.queues) > 0 {
		i.queuePart()
	}
	for len(i.out) < imagePart && len(i.records) > 0 {
		i.recordPart()
	}
	more = !i.walk.Done() || len(i.queues)+len(i.records) > 0
	if !more {
		s := &i.sizes
		i.out = appendUvarints(append(i.out, 'E'), s.keys, s.items, s.claims, s.sessions, s.answers)
		i.End()
	}
	part, i.out = i.out, nil
	return part, more
}

// End gives up what is left of the image. It is idempotent, and called in a step of the machine.
func (i *Image) End() {
	if !i.ended {
		i.ended = true
		i.walk.End()
		i.machine.image = nil
	}
}

func (i *Image) key(e *keytable.Entry) {
	if i.client && len(i.out) > imageMost {
		i.lost = true
	}
	if i.lost {
		return
	}
	if i.out == nil {
		i.out = make([]byte, 0, imagePart+imagePart/8)
	}
	i.sizes.keys++
	i.out = appendString(appendString(append(i.out, 'K'), e.Key()), e.Value())
}

func (i *Image) queuePart() {
	q := &i.queues[0]
	n := min(len(q.items), queuePart)
	i.out = binary.AppendUvarint(appendString(append(i.out, 'Q'), q.key), uint64(n))
	for _, item := range q.items[:n] {
		i.out = appendString(i.out, item)
	}
	if q.items = q.items[n:]; len(q.items) == 0 {
		i.queues = i.queues[1:]
	}
}

func (i *Image) claims(all *claims) {
	for holder, held := range all.byHolder {
		for _, c := range held {
			i.out = appendHolder(append(i.out, 'C'), holder)
			i.out = appendString(appendString(appendString(i.out, c.name), c.text), c.host)
			i.out = binary.AppendUvarint(i.out, uint64(c.sub))
			i.sizes.claims++
		}
	}
	for _, b := range all.released {
		for _, g := range b.list {
			if g.stale() {
				continue
			}
			i.out = appendString(appendString(appendString(append(i.out, 'R'), g.claim.name), g.claim.text), g.claim.host)
			i.out = binary.AppendUvarint(i.out, uint64(g.claim.sub))
			i.sizes.claims++
		}
	}
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// backup sends a client the next part of an image.
func (m *Machine) backup(c *Conn, r *wire.Request) error {
	i := c.holdings.image
	if r.Nonce != 0 {
		if i != nil {
			i.End()
		}
		if i = m.beginImage(); i == nil { // without sessions: a token is for its client alone
			return cohort.New("tcpstore: backup", cohort.AlreadyExists,
				"an image of the store is being made already: try again in a moment")
		}
		i.client, c.holdings.image = true, i
	}
	switch {
	case i == nil || i.ended && !i.lost:
		return cohort.New("tcpstore: backup", cohort.InvalidArgument, "none was begun on this connection")
	case i.lost:
		i.End()
		c.holdings.image = nil
		return cohort.New("tcpstore: backup", cohort.Exhausted, "the store changes faster than the client reads: try again")
	}
	if err := m.mayReply(max(len(i.out), imagePart), 0); err != nil {
		return err
	}
	part, more := i.Next()
	if !more {
		c.holdings.image = nil
	}
	start := m.begin(c, r.ID)
	c.out.appendValue(part, part)
	c.out.Buf = wire.AppendInt(c.out.Buf, map[bool]int64{true: 1}[more])
	m.end(c, start)
	return nil
}

// Hash returns a number that another content of the store hardly ever has. All machines that have applied the same commands have the same.
// It looks at all that there is.
func (m *Machine) Hash() uint64 {
	raw := m.config.Base.mask(m.run.identity)
	sum := hashOf(raw[:], binary.LittleEndian.AppendUint64(nil, m.log.era))
	walk := m.table.Walk(func(*keytable.Entry) {})
	for !walk.Done() {
		if e, _, ok := walk.Next(); ok {
			sum += hashOf([]byte{'K'}, e.Key(), e.Value())
		}
	}
	walk.End()
	for key, q := range m.queues.byKey {
		sum += hashOf(append([][]byte{{'Q'}, []byte(key)}, q.items[q.first:]...)...)
	}
	for holder, held := range m.claims.byHolder {
		for n, c := range held {
			who := appendHolder(binary.AppendUvarint(nil, uint64(c.sub)), holder)
			sum += hashOf([]byte{'C', byte(n)}, who, []byte(c.name), c.text, []byte(c.host))
		}
	}
	for _, s := range m.sessions.byID {
		sum += s.hash()
	}
	for host, b := range m.claims.released {
		parts := [][]byte{{'R'}, []byte(host)}
		for _, g := range b.list {
			if !g.stale() {
				parts = append(parts, []byte(g.claim.name), g.claim.text, binary.AppendUvarint(nil, uint64(g.claim.sub)))
			}
		}
		if len(parts) > 2 {
			sum += hashOf(parts...)
		}
	}
	return sum
}

// hashOf is FNV-1a of strings and their lengths, mixed once more, so that sums of such numbers differ.
func hashOf(parts ...[]byte) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range parts {
		h = (h ^ uint64(len(p))) * 1099511628211
		for _, b := range p {
			h = (h ^ uint64(b)) * 1099511628211
		}
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// compareHolders orders holders.
func compareHolders(a, b holderID) int {
	return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Conn, b.Conn))
}
