// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// tap records what a rank writes to a connection.
type tap struct {
	net.Conn
	mu  sync.Mutex
	out bytes.Buffer
}

func (c *tap) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.out.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *tap) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}

// traffic is what one rank sends to another on one slot, by opcode. How announcements, offers and data interleave
// depends on timing; the order within each does not.
type traffic map[string][]string

// release tells the slots of answers of monitored barriers.
func (tr traffic) add(src, dst string, f gloowire.Frame, payload []byte, release func(slot uint64) bool) {
	key := fmt.Sprintf("%s>%s slot %#x %s", src, dst, f.Slot, f.Opcode)
	line := strconv.FormatUint(f.Length, 10)
	// PyTorch's rank 0 answers a monitored barrier with whatever it received last.
	if f.Opcode == gloowire.Data && !release(f.Slot) {
		line += " " + hex.EncodeToString(payload[:min(32, len(payload))])
	}
	tr[key] = append(tr[key], line)
}

// recordedTraffic reads the frames of one PyTorch version, or those alone of connections whose comment ends with the word group.
func recordedTraffic(t *testing.T, file, version, group string, release func(uint64) bool) traffic {
	t.Helper()
	f, err := os.Open("gloowire/testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	tr := traffic{}
	on, within := false, group == ""
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "[") {
			on = strings.HasPrefix(line, "["+version+" ")
		}
		if group != "" && strings.HasPrefix(line, "# connection") {
			within = strings.HasSuffix(line, group)
		}
		line, _, _ = strings.Cut(line, "  #")
		fields := strings.Fields(line)
		if !on || !within || len(fields) != 4 || !strings.Contains(fields[0], ">") {
			continue
		}
		src, dst, _ := strings.Cut(fields[0], ">")
		header, err := hex.DecodeString(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		frame, err := gloowire.ParseFrame(header)
		if err != nil {
			t.Fatal(err)
		}
		payload, _ := hex.DecodeString(fields[3])
		tr.add(src, dst, frame, payload, release)
	}
	return tr
}

func f32s(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// TestFramesAreThoseOfPyTorch runs the captured sessions with three Go ranks and compares every frame.
func TestFramesAreThoseOfPyTorch(t *testing.T) {
	for _, c := range []struct {
		file, version string
		generation    Generation
		release       uint64
		session       func(r int, m *Mesh) error
	}{
		{"gloo-frames.txt", "2.6.0", C, 10, session},
		{"gloo-frames.txt", "1.13.1", A, 10, session},
		{"gloo-frames-2.14.txt", "2.14.1", D, 18, session214},
	} {
		t.Run(c.version, func(t *testing.T) {
			release := func(slot uint64) bool { return slot == c.release }
			want := recordedTraffic(t, c.file, c.version, "", release)
			if len(want) < 50 {
				t.Fatalf("only %d kinds of frames in the capture", len(want))
			}
			if diff := cmp.Diff(want, sessionTraffic(t, 3, c.generation, release, c.session)); diff != "" {
				t.Fatalf("frames (-recorded +ours):\n%s", diff)
			}
		})
	}
}

// runAll runs collectives of float32 with the tags from first on.
func runAll(e *Engine, first uint32, reqs ...collective.Request) error {
	for i := range reqs {
		q := &reqs[i]
		q.Tag, q.DType, q.Timeout = first+uint32(i), tensor.Float32, 10*time.Second
		if q.Op == 0 {
			q.Op = reduce.Sum
		}
		if err := e.Run(context.Background(), q); err != nil {
			return fmt.Errorf("%s: %w", q.Kind, err)
		}
	}
	return nil
}

// message sends buf from rank 0 to rank 1.
func message(r int, m *Mesh, slot uint64, buf []byte) error {
	op := &transport.Op{Peer: 1 - r, Slot: slot, Buf: buf}
	switch r {
	case 0:
		m.Send(op)
	case 1:
		m.Recv(op)
	default:
		return nil
	}
	return m.Wait(context.Background(), op)
}

// session214 does what the ranks of the capture of 2.14 did.
func session214(r int, m *Mesh) error {
	e := NewEngine(m)
	x := func(n int) (b []byte) {
		for i := range n {
			b = append(b, f32s(float32(1+i+10*r))...)
		}
		return b
	}
	one, two := float32(1+10*r), float32(2+10*r)
	counts := func(ns ...int) []int {
		for i := range ns {
			ns[i] *= 4
		}
		return ns
	}
	six := x(6)
	err := runAll(e, 0,
		collective.Request{Kind: collective.AllReduce, Out: x(5)},
		collective.Request{Kind: collective.AllReduce, Out: x(5)}, // the average
		collective.Request{Kind: collective.AllReduce, Out: f32s(one, one, two, two)},
		collective.Request{Kind: collective.Reduce, Root: 1, Out: x(5)},
		collective.Request{Kind: collective.Broadcast, Root: 2, Out: x(5)},
		collective.Request{Kind: collective.AllGather, In: x(5), Out: make([]byte, 60)},
		collective.Request{Kind: collective.AllGather, In: x(5), Out: make([]byte, 60)},
		collective.Request{Kind: collective.Gather, Root: 0, In: x(5), Out: make([]byte, 60)},
		collective.Request{Kind: collective.Scatter, Root: 0, In: x(6), Out: make([]byte, 8)},
		collective.Request{Kind: collective.AllReduce, Out: six[:8]}, // reduce_scatter of a list
		collective.Request{Kind: collective.AllReduce, Out: six[8:16]},
		collective.Request{Kind: collective.AllReduce, Out: six[16:]},
		collective.Request{Kind: collective.AllReduce, Op: reduce.Max, Out: x(6)},
		collective.Request{Kind: collective.AllToAll, In: x(6), Out: make([]byte, 24)},
		collective.Request{Kind: collective.AllToAll, In: x(6), Out: make([]byte, 24)}, // of lists
		collective.Request{
			Kind: collective.AllToAll, In: x(3 * (r + 1)), InCounts: counts(r+1, r+1, r+1), Out: make([]byte, 24),
			OutCounts: counts(1, 2, 3),
		},
		collective.Request{Kind: collective.Barrier})
	if err != nil {
		return err
	}
	if err = (&monitoredbarrier.Barrier{Mesh: m, Report: 17, Release: 18, Limit: time.Minute, All: true}).Run(
		context.Background()); err != nil {
		return err
	}
	if err = message(r, m, 7, x(5)); err != nil {
		return err
	}
	err = runAll(e, 19,
		collective.Request{Kind: collective.AllGather, In: append(x(3), x(2)...), Out: make([]byte, 60)},
		collective.Request{Kind: collective.AllReduce, Out: x(3)}, collective.Request{Kind: collective.AllReduce, Out: x(6)})
	if err != nil {
		return err
	}
	return sparseSum(e, r, 22)
}

// sparseSum is the all-reduce of a sparse tensor with 2 of 4 elements, those at the rank and at 3: three exchanges with one tag.
func sparseSum(e *Engine, r int, tag uint32) error {
	words := func(list ...int64) []byte { return putWords(list) }
	for _, q := range []*collective.Request{
		{Kind: collective.AllGather, In: words(4, 0, 0, 0, 0, 0, 0, 0, 2), Out: make([]byte, 3*9*8), More: true},
		{Kind: collective.AllGatherV, In: words(int64(r), 3), Out: make([]byte, 3*16), OutCounts: []int{16, 16, 16}, More: true},
		{Kind: collective.AllGatherV, In: f32s(float32(1+10*r), float32(2+10*r)), Out: make([]byte, 3*8), OutCounts: []int{8, 8, 8}},
	} {
		q.Tag, q.Timeout = tag, 10*time.Second
		if err := e.Run(context.Background(), q); err != nil {
			return err
		}
	}
	return nil
}

// sessionTraffic runs a session and returns what was written.
func sessionTraffic(t *testing.T, size int, generation Generation, release func(uint64) bool, session func(r int, m *Mesh) error) traffic {
	t.Helper()
	var mu sync.Mutex
	taps := map[[2]int]*tap{}
	meshes := connectWorld(t, size, func(rank int, c *Config) {
		c.Generation = generation
		c.Wrap = func(peer int, conn net.Conn) net.Conn {
			mu.Lock()
			defer mu.Unlock()
			taps[[2]int{rank, peer}] = &tap{Conn: conn}
			return taps[[2]int{rank, peer}]
		}
	})
	each(t, size, func(r int) error { return session(r, meshes[r]) })
	got := traffic{}
	for pair, c := range taps {
		c.mu.Lock()
		raw := c.out.Bytes()
		c.mu.Unlock()
		for len(raw) > 0 {
			frame, err := gloowire.ParseFrame(raw)
			if err != nil {
				t.Fatal(err)
			}
			raw = raw[gloowire.HeaderSize:]
			var payload []byte
			if frame.Opcode == gloowire.Data {
				payload, raw = raw[:frame.Length], raw[frame.Length:]
			}
			got.add(strconv.Itoa(pair[0]), strconv.Itoa(pair[1]), frame, payload, release)
		}
	}
	return got
}

// session does what the ranks of the captures of 1.13 and 2.6 did.
func session(r int, m *Mesh) error {
	e := NewEngine(m)
	five := func() []byte {
		x := float32(1 + 10*r)
		return f32s(x, x+1, x+2, x+3, x+4)
	}
	var parts []byte
	for k := range 3 {
		x := float32(100 * k)
		parts = append(parts, f32s(x, x+1, x+2, x+3, x+4)...)
	}
	even := append(five(), f32s(float32(6+10*r))...)
	var uneven []byte
	var counts []int
	for b := range 3 {
		for k := range r + b + 1 {
			uneven = append(uneven, f32s(float32(100*r+10*b+k))...)
		}
		counts = append(counts, 4*(r+b+1))
	}
	reqs := []collective.Request{
		{Kind: collective.AllReduce, Out: five()},
		{Kind: collective.Broadcast, Root: 1, Out: five()},
		{Kind: collective.Reduce, Root: 2, Out: five()},
		{Kind: collective.AllGather, In: five(), Out: make([]byte, 60)},
		{Kind: collective.Gather, Root: 0, In: five(), Out: make([]byte, 60)},
		{Kind: collective.Scatter, Root: 1, In: parts, Out: make([]byte, 20)},
		{Kind: collective.AllToAll, In: even, Out: make([]byte, 24)},
		{Kind: collective.AllToAll, In: uneven, InCounts: counts, Out: make([]byte, len(uneven)), OutCounts: counts},
		{Kind: collective.Barrier},
	}
	if err := runAll(e, 0, reqs...); err != nil {
		return err
	}
	if err := message(r, m, 5, five()); err != nil {
		return err
	}
	return (&monitoredbarrier.Barrier{Mesh: m, Report: 9, Release: 10, Limit: time.Minute, All: true}).Run(context.Background())
}

// session214Detail is what two ranks of 2.14 said to each other before their operations with TORCH_DISTRIBUTED_DEBUG=DETAIL, in the
// order of the capture. Messages and monitored barriers are not checked; messages count.
func session214Detail(rank int, m *Mesh) error {
	const float32s = 6
	tensors := func(dtype uint8, shapes ...[]int64) (all []tensorPrint) {
		for _, s := range shapes {
			all = append(all, tensorPrint{DType: dtype, Shape: s})
		}
		return all
	}
	four := []int64{4}
	if rank == 1 {
		four = []int64{5}
	}
	w := NewWrapper(Torch26, m)
	for i, f := range []Fingerprint{
		{Op: 1, Sequence: 0, Tensors: tensors(float32s, []int64{5})},
		{Op: 1, Sequence: 1, Tensors: tensors(float32s, []int64{5})},    // the average
		{Op: 1, Sequence: 2, Tensors: tensors(float32s, []int64{2, 2})}, // complex numbers are viewed as real ones first
		{Op: 3, Sequence: 3, Tensors: tensors(float32s, []int64{5})},
		{Op: 5, Sequence: 4, Tensors: tensors(float32s, []int64{5})},
		{Op: 15, Sequence: 4}, // all_gather_single has not counted
		{Op: 20, Sequence: 8},
		{Op: 1, Sequence: 9, Tensors: tensors(float32s, []int64{4})}, // sparse: the dense shape
		{Op: 4, Sequence: 10, Tensors: tensors(float32s, []int64{4})},
		{Op: 7, Sequence: 11, Tensors: tensors(float32s, []int64{4})},
		{Op: 8, Sequence: 12, Tensors: tensors(float32s, []int64{2})},
		{Op: 9, Sequence: 13, Tensors: tensors(float32s, []int64{2})},
		{Op: 16, Sequence: 15, Tensors: tensors(float32s, []int64{4}, []int64{2})},
		{Op: 10, Sequence: 16},
		{Op: 11, Sequence: 17},
		{Op: 19, Sequence: 18},
		{Op: 2, Sequence: 20},
		{Op: 1, Sequence: 21, Tensors: tensors(float32s, four)},
	} {
		err := w.Check(context.Background(), &f, 10*time.Second)
		if last := i == 17; last != errors.Is(err, cohort.Mismatch) || !last && err != nil {
			return cohort.Newf("test", cohort.Internal, "check %d: %v", i, err)
		}
	}
	return nil
}

// TestDetailFramesAreThoseOfPyTorch runs the checks of the capture with two Go ranks and compares every frame of the helper group, the
// mismatch at its end included.
func TestDetailFramesAreThoseOfPyTorch(t *testing.T) {
	release := func(slot uint64) bool { return slot < 1<<32 && slot%4 == 1 } // four tags a check; the barrier has the first two
	want := recordedTraffic(t, "gloo-detail-2.14.txt", "2.14.1", "of the helper group", release)
	if len(want) < 200 {
		t.Fatalf("only %d kinds of frames in the capture", len(want))
	}
	if diff := cmp.Diff(want, sessionTraffic(t, 2, D, release, session214Detail)); diff != "" {
		t.Fatalf("frames (-recorded +ours):\n%s", diff)
	}
}
