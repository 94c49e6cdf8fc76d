// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
)

const (
	segmentMagic   = 0x31306d6873686f63 // "cohshm01"
	segmentVersion = 5

	pageSize = 4096
	lineSize = 64
	minPart  = 4 << 10  // least room for one rank's part of an area
	maxRoom  = 64 << 20 // most room of a slot or an area

	abortTextRoom = 768

	// window bounds how far ranks are apart: one may be window-1 steps ahead of another. A step stays readable for as long again, so
	// that a rank can compare what the others were asked to do after it has continued itself.
	window    = 32
	stepLines = 2 * window
	// areaTurns is the number of areas that take turns.
	areaTurns = 2
	// sets is the number of slots and tables of a rank, which it uses in turn: if it has more data to show than fits a descriptor, it can
	// be this many operations ahead of the others.
	sets = 4
)

// maxArena bounds an arena so that offsets fit everywhere: 64 GiB, or 256 MiB on 32-bit machines.
const maxArena = 1 << (28 + 8*(^uint(0)>>63))

// maxArenas bounds the arenas of all ranks together: what an address can reach with room to spare.
const maxArenas = 1 << (28 + 16*(^uint(0)>>63))

// header is the first page of the segment. Rank 0 fills it before any other rank sees it.
type header struct {
	magic   uint64
	version uint32
	ranks   uint32
	slot    uint64
	area    uint64
	arena   uint64
	ring    uint64
	total   uint64

	_ [lineSize - 56]byte
	// abort is why the group ended: written once by the first rank that gives up.
	abort struct {
		state uint32 // 0 none, 1 being written, 2 complete
		code  uint32
		rank  int32
		size  uint32
		text  [abortTextRoom]byte
	}
}

// stepLine is what the others read of a rank at a step, in one cache line.
type stepLine struct {
	step     uint32 // futex; the number of the step, once it is taken
	sleepers uint32 // ranks that sleep on step
	desc     descriptor
	set      uint32                // which of its slots and tables the rank has used
	shape    collective.Shape      // for the text of a mismatch
	_        [2*lineSize - 56]byte // the prefetcher fetches lines in pairs
}

// rankSteps are the last steps of a rank, by their number modulo the number of lines.
type rankSteps [stepLines]stepLine

func (s *rankSteps) at(step uint32) *stepLine { return &s[step%stepLines] }

// bellLine is what a rank that waits for messages listens to.
type bellLine struct {
	rings    uint32 // futex; rung by a rank that put something into a ring of this rank or made room in one
	sleepers uint32
}

// lifeLine is what the others read of a rank when it is late.
type lifeLine struct {
	beats uint64
	pid   uint32
	core  uint32 // where it ran lately, plus one; 0 is not known
}

func (l *lifeLine) setCore(core int) { atomic.StoreUint32(&l.core, uint32(core+1)) } //nolint:gosec // the number of a core, or -1

func (l *lifeLine) atCore() int { return int(atomic.LoadUint32(&l.core)) - 1 }

// layout is where everything is.
type layout struct {
	ranks, slot, area, arena, ring int

	control   int // bytes of one rank's control block
	slotsAt   int
	areasAt   int
	ringsAt   int
	arenasAt  int
	totalSize int
}

const (
	lifeAt   = 0
	bellAt   = 128 // the prefetcher fetches lines in pairs
	stepsAt  = 256
	tablesAt = stepsAt + stepLines*2*lineSize
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// ringSize is the room between two ranks for messages: less with more ranks, since there is a ring for every pair.
func ringSize(ranks int) int {
	size := 256 << 10
	for size > 4<<10 && int64(ranks*ranks)*int64(size) > 16<<20 {
		size /= 2
	}
	return size
}

// newLayout places everything. It refuses a segment of more bytes than most, which a process here cannot map.
func newLayout(ranks, slot, area, arena int, most int64) (layout, error) {
	l := layout{
		ranks: ranks, slot: roundUp(slot, 128), area: roundUp(area, pageSize), arena: roundUp(arena, pageSize), ring: ringSize(ranks),
		control: roundUp(tablesAt+sets*2*8*ranks, 128),
	}
	total := int64(0) // sums and products of sizes do not fit an int of 32 bits
	place := func(n, size int) (at int64) {
		at = total
		total += (int64(n)*int64(size) + pageSize - 1) / pageSize * pageSize
		return at
	}
	place(1, pageSize) // the header
	place(ranks, l.control)
	slotsAt := place(ranks*sets, l.slot)
	areasAt := place(ranks*4, l.area)
	ringsAt := place(ranks*ranks, shmring.ControlSize+l.ring)
	arenasAt := place(ranks, l.arena)
	if total > most {
		return layout{}, cohort.Newf("shm: layout", cohort.InvalidArgument,
			"a segment of %d bytes for %d ranks: a process here can map at most %d (lower Slot, Area or Arena of rank 0)",
			total, ranks, most)
	}
	l.slotsAt, l.areasAt, l.ringsAt, l.arenasAt, l.totalSize = int(slotsAt), int(areasAt), int(ringsAt), int(arenasAt), int(total)
	return l, nil
}

// segment is the mapped memory with its layout.
type segment struct {
	layout
	mem []byte
}

func at[T any](s *segment, offset int) *T { return (*T)(unsafe.Pointer(&s.mem[offset])) } //nolint:gosec // a place in the mapped segment

func (s *segment) header() *header { return at[header](s, 0) }

func (s *segment) steps(rank int) *rankSteps {
	return at[rankSteps](s, pageSize+rank*s.control+stepsAt)
}

func (s *segment) life(rank int) *lifeLine { return at[lifeLine](s, pageSize+rank*s.control+lifeAt) }

func (s *segment) bell(rank int) *bellLine { return at[bellLine](s, pageSize+rank*s.control+bellAt) }

// ringOf is the ring from one rank to another, as it is before anything was sent.
func (s *segment) ringOf(from, to int) shmring.Ring {
	at0 := s.ringsAt + (from*s.ranks+to)*(shmring.ControlSize+s.ring)
	return shmring.New(at[shmring.Control](s, at0), s.mem[at0+shmring.ControlSize:][:s.ring:s.ring])
}

// table returns two rows of one word per rank: what rank sends to each, and what it expects from each.
func (s *segment) table(rank int, set uint32) (send, recv []uint64) {
	p := at[uint64](s, pageSize+rank*s.control+tablesAt+int(set%sets)*2*8*s.ranks)
	both := unsafe.Slice(p, 2*s.ranks) //nolint:gosec // a place in the mapped segment
	return both[:s.ranks], both[s.ranks:]
}

// slotOf is where a rank shows small data.
func (s *segment) slotOf(rank int, set uint32) []byte {
	from := s.slotsAt + (sets*rank+int(set%sets))*s.slot
	return s.mem[from : from+s.slot : from+s.slot]
}

// input is where a rank puts a piece for others to read, result where it puts what it has reduced.
func (s *segment) input(rank, parity int) []byte  { return s.areaAt(rank, parity) }
func (s *segment) result(rank, parity int) []byte { return s.areaAt(rank, 2+parity) }

func (s *segment) areaAt(rank, i int) []byte {
	from := s.areasAt + (4*rank+i)*s.area
	return s.mem[from : from+s.area : from+s.area]
}

func (s *segment) arenaOf(rank int) []byte {
	from := s.arenasAt + rank*s.arena
	return s.mem[from : from+s.arena : from+s.arena]
}

// describe fills the header of a segment with a layout.
func (h *header) describe(l *layout) {
	//nolint:gosec // bounded by MaxRanks
	h.magic, h.version, h.ranks = segmentMagic, segmentVersion, uint32(l.ranks)
	//nolint:gosec // sizes
	h.slot, h.area, h.arena, h.ring, h.total = uint64(l.slot), uint64(l.area), uint64(l.arena), uint64(l.ring), uint64(l.totalSize)
}

// adopt reads the layout from a copy of the header that another process wrote, trusting nothing.
func adopt(h *header, fileSize int64, ranks int) (layout, error) {
	const op = "shm: join"
	if h.magic != segmentMagic || h.version != segmentVersion {
		return layout{}, cohort.Newf(op, cohort.Protocol,
			"segment magic %#x version %d: want %#x and %d (are all ranks of the same build?)",
			h.magic, h.version, uint64(segmentMagic), segmentVersion)
	}
	if int(h.ranks) != ranks {
		return layout{}, cohort.Newf(op, cohort.Mismatch, "the segment is for %d ranks, this rank expects %d", h.ranks, ranks)
	}
	//nolint:gosec // ranks are at least 1
	if h.slot > maxRoom || h.area > maxRoom*2 || h.arena > maxArena || h.arena > maxArenas/uint64(ranks) {
		return layout{}, cohort.Newf(op, cohort.Protocol, "segment with slot %d, area %d, arena %d", h.slot, h.area, h.arena)
	}
	l, err := newLayout(ranks, int(h.slot), int(h.area), int(h.arena), math.MaxInt)
	if err != nil {
		return layout{}, err
	}
	//nolint:gosec // sizes, and bounded above
	if uint64(l.ring) != h.ring || uint64(l.totalSize) != h.total || fileSize != int64(l.totalSize) || l.slot != int(h.slot) ||
		l.area != int(h.area) || l.arena != int(h.arena) {
		return layout{}, cohort.Newf(op, cohort.Protocol, "segment of %d bytes: its header says %d, its layout %d", fileSize,
			h.total, l.totalSize)
	}
	return l, nil
}

// The structures must fit their places.
var (
	_ [2*lineSize - unsafe.Sizeof(stepLine{})]byte
	_ [pageSize - unsafe.Sizeof(header{})]byte
)
