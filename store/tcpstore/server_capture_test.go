// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storewire/storecapture"
)

// eachDriver runs a test on all ways to serve: one event loop, several, and goroutines.
func eachDriver(t *testing.T, test func(t *testing.T, opts ...ServerOption)) {
	t.Helper()
	t.Run("default", func(t *testing.T) { test(t) })
	t.Run("loops", func(t *testing.T) { test(t, WithLoops(3)) })
	t.Run("portable", func(t *testing.T) { test(t, withPortable()) })
}

func startServer(tb testing.TB, opts ...ServerOption) *Server {
	tb.Helper()
	s, err := Listen("127.0.0.1:0", opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func dialRaw(tb testing.TB, s *Server) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
	return c
}

// TestServerCaptures replays what real PyTorch clients sent and compares each answer, byte by byte, with that of the
// real server: all versions, all at once and one byte at a time.
func TestServerCaptures(t *testing.T) {
	for _, version := range storecapture.Versions {
		for _, piece := range []int{1 << 20, 1} {
			name := version + "/whole"
			if piece == 1 {
				name = version + "/bytewise"
			}
			t.Run(name, func(t *testing.T) {
				eachDriver(t, func(t *testing.T, opts ...ServerOption) {
					t.Helper()
					replayCapture(t, version, piece, opts...)
				})
			})
		}
	}
}

func replayCapture(t *testing.T, version string, piece int, opts ...ServerOption) {
	t.Helper()
	blocks, err := storecapture.Load(version)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, opts...)
	conns := map[string]net.Conn{}
	replies := 0
	for _, b := range blocks {
		if strings.Contains(b.Title, "world_size=2") && strings.Contains(b.Title, "client") {
			// These blocks belong to a second server, where the master was counted already.
			s = startServer(t, opts...)
			conns = map[string]net.Conn{}
			join, err := storecapture.Load(version)
			if err != nil {
				t.Fatal(err)
			}
			conns["master"] = dialRaw(t, s)
			for _, item := range join[len(join)-1].Items[:countJoin(join[len(join)-1])] {
				exchange(t, conns["master"], b.Title, item, piece)
			}
		}
		if strings.Contains(b.Title, "fresh") || b.Title == "33 get timeout, store timeout 1 s" && version == "1.13" {
			delete(conns, "") // a new TCPStore object
		}
		if strings.Contains(b.Title, "master (its own") {
			continue // replayed above as far as it does not depend on time
		}
		for _, item := range b.Items {
			if conns[item.Conn] == nil {
				conns[item.Conn] = dialRaw(t, s)
			}
			exchange(t, conns[item.Conn], b.Title, item, piece)
			if !item.Request {
				replies++
			}
		}
	}
	if replies < 20 {
		t.Fatalf("only %d replies were compared", replies)
	}
}

// countJoin returns how many items of a master's block belong to its start: everything up to the reply to its ADD.
func countJoin(b storecapture.Block) int {
	for i, item := range b.Items {
		if strings.HasPrefix(item.Note, "ADD") {
			return i + 2
		}
	}
	return 0
}

// sortedKeys is a reply to LIST_KEYS with its keys in order.
func sortedKeys(t *testing.T, reply []byte) []byte {
	t.Helper()
	var keys []string
	for rest := reply[8:]; len(rest) > 0; {
		n := binary.LittleEndian.Uint64(rest)
		if n > uint64(len(rest)-8) {
			t.Fatalf("a key of %d bytes in a reply of %d", n, len(reply))
		}
		keys, rest = append(keys, string(rest[8:8+n])), rest[8+n:]
	}
	slices.Sort(keys)
	return append(bytes.Clone(reply[:8]), strings.Join(keys, "\x00")...)
}

func exchange(t *testing.T, c net.Conn, title string, item storecapture.Item, piece int) {
	t.Helper()
	if item.Request {
		for rest := item.Data; len(rest) > 0; {
			n := min(piece, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatalf("[%s] %s: %v", title, item.Note, err)
			}
			rest = rest[n:]
		}
		return
	}
	got := make([]byte, len(item.Data))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("[%s] reply: %v", title, err)
	}
	if strings.Contains(title, "list_keys") {
		got, item.Data = sortedKeys(t, got), sortedKeys(t, item.Data) // a hash map's order
	}
	if string(got) != string(item.Data) {
		t.Fatalf("[%s] reply %s, PyTorch's server said %s", title, hex.EncodeToString(got), hex.EncodeToString(item.Data))
	}
}
