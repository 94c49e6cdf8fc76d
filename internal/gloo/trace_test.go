// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
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

	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/gloo/wire"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/reduce"
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

// traffic is what goes from one rank to another on one slot, by opcode. How announcements, offers and data interleave
// depends on timing; the order within each does not.
type traffic map[string][]string

func (tr traffic) add(src, dst string, f wire.Frame, payload []byte) {
	key := fmt.Sprintf("%s>%s slot %#x %s", src, dst, f.Slot, f.Opcode)
	line := strconv.FormatUint(f.Length, 10)
	// PyTorch's rank 0 answers a monitored barrier (tags 9 and 10) with whatever it received last.
	if f.Opcode == wire.Data && f.Slot != 10 {
		line += " " + hex.EncodeToString(payload[:min(32, len(payload))])
	}
	tr[key] = append(tr[key], line)
}

// recordedTraffic reads the frames of one PyTorch version.
func recordedTraffic(t *testing.T, version string) traffic {
	t.Helper()
	f, err := os.Open("wire/testdata/gloo-frames.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	tr := traffic{}
	on := false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "[") {
			on = strings.HasPrefix(line, "["+version+" ")
		}
		line, _, _ = strings.Cut(line, "  #")
		fields := strings.Fields(line)
		if !on || len(fields) != 4 || !strings.Contains(fields[0], ">") {
			continue
		}
		src, dst, _ := strings.Cut(fields[0], ">")
		header, err := hex.DecodeString(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		frame, err := wire.ParseFrame(header)
		if err != nil {
			t.Fatal(err)
		}
		payload, _ := hex.DecodeString(fields[3])
		tr.add(src, dst, frame, payload)
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

// TestFramesAreThoseOfPyTorch runs the captured session with three Go ranks and compares every frame.
func TestFramesAreThoseOfPyTorch(t *testing.T) {
	for _, c := range []struct {
		version    string
		generation Generation
	}{{"2.6.0", C}, {"1.13.1", A}} {
		t.Run(c.version, func(t *testing.T) {
			want := recordedTraffic(t, c.version)
			if len(want) < 50 {
				t.Fatalf("only %d kinds of frames in the capture", len(want))
			}
			if diff := cmp.Diff(want, sessionTraffic(t, c.generation)); diff != "" {
				t.Fatalf("frames (-recorded +ours):\n%s", diff)
			}
		})
	}
}

// sessionTraffic does what the capture's ranks did.
func sessionTraffic(t *testing.T, generation Generation) traffic {
	t.Helper()
	var mu sync.Mutex
	taps := map[[2]int]*tap{}
	meshes := connectWorld(t, 3, func(rank int, c *Config) {
		c.Generation = generation
		c.Wrap = func(peer int, conn net.Conn) net.Conn {
			mu.Lock()
			defer mu.Unlock()
			taps[[2]int{rank, peer}] = &tap{Conn: conn}
			return taps[[2]int{rank, peer}]
		}
	})
	each(t, 3, func(r int) error {
		e := NewEngine(meshes[r])
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
		reqs := []coll.Request{
			{Kind: coll.AllReduce, Out: five()},
			{Kind: coll.Broadcast, Root: 1, Out: five()},
			{Kind: coll.Reduce, Root: 2, Out: five()},
			{Kind: coll.AllGather, In: five(), Out: make([]byte, 60)},
			{Kind: coll.Gather, Root: 0, In: five(), Out: make([]byte, 60)},
			{Kind: coll.Scatter, Root: 1, In: parts, Out: make([]byte, 20)},
			{Kind: coll.AllToAll, In: even, Out: make([]byte, 24)},
			{Kind: coll.AllToAll, In: uneven, InCounts: counts, Out: make([]byte, len(uneven)), OutCounts: counts},
			{Kind: coll.Barrier},
		}
		for i := range reqs {
			q := &reqs[i]
			q.Tag, q.DType, q.Op, q.Timeout = uint32(i), tensor.Float32, reduce.Sum, 10*time.Second
			if err := e.Run(context.Background(), q); err != nil {
				return fmt.Errorf("%s: %w", q.Kind, err)
			}
		}
		op := &link.Op{Peer: 1 - r, Slot: 5, Buf: five()}
		switch r {
		case 0:
			meshes[r].Send(op)
		case 1:
			meshes[r].Recv(op)
		}
		if r < 2 {
			if err := meshes[r].Wait(context.Background(), op); err != nil {
				return err
			}
		}
		_, err := MonitoredBarrier(context.Background(), meshes[r], 9, 10, true)
		return err
	})
	got := traffic{}
	for pair, c := range taps {
		c.mu.Lock()
		raw := c.out.Bytes()
		c.mu.Unlock()
		for len(raw) > 0 {
			frame, err := wire.ParseFrame(raw)
			if err != nil {
				t.Fatal(err)
			}
			raw = raw[wire.HeaderSize:]
			var payload []byte
			if frame.Opcode == wire.Data {
				payload, raw = raw[:frame.Length], raw[frame.Length:]
			}
			got.add(strconv.Itoa(pair[0]), strconv.Itoa(pair[1]), frame, payload)
		}
	}
	return got
}
