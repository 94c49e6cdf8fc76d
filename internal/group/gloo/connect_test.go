// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/store"
)

// recording reads the lines of one block of the recorded rendezvous.
func recording(t *testing.T, block string) [][]string {
	t.Helper()
	f, err := os.Open("gloowire/testdata/gloo-blobs.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	var lines [][]string
	on := false
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "[") {
			on = strings.HasPrefix(line, "["+block+" ")
			continue
		}
		if on && line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Fields(line))
		}
	}
	if len(lines) == 0 {
		t.Fatalf("no block %q in the recording", block)
	}
	return lines
}

// TestKeysAreThoseOfPyTorch makes the keys of a world of three and of new_group([0, 2]) and compares with all keys that
// real ranks wrote.
func TestKeysAreThoseOfPyTorch(t *testing.T) {
	for _, c := range []struct {
		block  string
		layout Layout
		detail bool
	}{{"A", Torch113, false}, {"C", Torch26, false}, {"A-detail", Torch113, true}, {"C-detail", Torch26, true}} {
		t.Run(c.block, func(t *testing.T) {
			recorded := map[string]bool{}
			for _, f := range recording(t, c.block) {
				if key := strings.Trim(f[2], `"`); (f[0] == "set" || f[0] == "add") && key != "init/" {
					recorded[strings.TrimPrefix(key, "/")] = true
				}
			}
			ours := map[string]bool{}
			for k, size := range []int{3, 2} {
				name := GroupName(k)
				prefixes := []string{c.layout.MeshPrefix(DefaultPrefix, name)}
				if c.detail {
					prefixes = append(prefixes, c.layout.WrapperPrefix(DefaultPrefix, name))
				}
				for _, p := range prefixes {
					for r := range size {
						ours[recordKey(p, 0, r)] = true
						if c.layout == Torch113 {
							ours[hostKey(p, 0, r)] = true
						}
					}
				}
				if c.layout == Torch113 {
					ours[c.layout.BarrierKey(DefaultPrefix, k)] = true
					ours[c.layout.SequenceKey(DefaultPrefix, name)] = true
				}
			}
			if diff := cmp.Diff(recorded, ours); diff != "" {
				t.Fatalf("keys (-recorded +ours):\n%s", diff)
			}
		})
	}
}

func TestKeyNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Torch26.BarrierKey(DefaultPrefix, 0), "default_pg/store_based_barrier_key:0"},
		{Torch26.BarrierKey(DefaultPrefix, 2), "default_pg/0//store_based_barrier_key:2"},
		{Torch26.LastWorkerKey(DefaultPrefix, 0), "default_pg/store_based_barrier_key:0:last_worker"},
		{Torch113.BarrierKey(DefaultPrefix, 0), "default_pg/store_based_barrier_key:1"},
		{Torch26.SequenceKey(DefaultPrefix, "0"), ""},
		{recordKey("rpc_prefix_0", 0, 1), "rpc_prefix_0/0/1"}, // the group inside PyTorch's RPC
		{hostKey("rpc_prefix_0", 0, 1), "rpc_prefix_0/0/rank_1"},
		{recordKey("", 1, 2), "1/2"},
		{LocalSyncName([]int{0, 2}, 1), "4314d7ee2124be4609c7b955eb07bdf5e29f70ab"}, // sha1 of "0_2_1"
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestRecordedRendezvous replays the records of real ranks, with the ports of listeners that this test plays, in both
// roles, and checks what the dialler writes first.
func TestRecordedRendezvous(t *testing.T) {
	for _, c := range []struct {
		block      string
		generation Generation
		lazy       bool
		ids        []int64 // what rank 0 must write when it dials ranks 1 and 2
	}{
		{"B", B, false, []int64{0, 0}},
		{"C", C, false, []int64{0, 0}},
		{"D-eager", D, false, []int64{0, 0}},
		{"D-rankseq", D, false, []int64{0, 0}},
		{"D-lazy", D, true, []int64{0, 0}},
	} {
		for _, dials := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-dials-%v", c.block, dials), func(t *testing.T) {
				kv := store.NewMemory()
				defer func() { _ = kv.Close() }()
				ctx := within(t, 20*time.Second)
				device := "127.0.0.3"
				if !dials {
					device = "127.0.0.1"
				}
				listeners := make([]net.Listener, 3)
				for r := 1; r < 3; r++ {
					ln, err := net.Listen("tcp", "127.0.0.2:0")
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = ln.Close() }()
					listeners[r] = ln
					publishRecorded(t, kv, c.block, r, portOf(ln))
				}
				var mesh *Mesh
				var connectErr error
				var wg sync.WaitGroup
				wg.Go(func() {
					mesh, connectErr = Connect(ctx,
						Config{Rank: 0, Size: 3, Store: kv, Prefix: "p", Generation: c.generation, Lazy: c.lazy, Devices: []string{device}})
					if connectErr == nil {
						for r := 1; r < 3; r++ { // the first use of a lazy pair
							mesh.Send(&transport.Op{Peer: r, Slot: 1})
						}
					}
				})
				for r := 1; r < 3; r++ {
					if dials {
						conn, err := listeners[r].Accept()
						if err != nil {
							t.Fatal(err)
						}
						defer func() { _ = conn.Close() }()
						var hello [8]byte
						if _, err := io.ReadFull(conn, hello[:]); err != nil {
							t.Fatal(err)
						}
						if got := gloowire.ParsePreamble(hello); got != c.ids[r-1] {
							t.Errorf("rank 0 wrote %d to rank %d, want %d", got, r, c.ids[r-1])
						}
						continue
					}
					raw, err := kv.Get(ctx, recordKey("p", 0, 0))
					if err != nil {
						t.Fatal(err)
					}
					record, err := gloowire.ParseRecord(raw, 3)
					if err != nil {
						t.Fatal(err)
					}
					to, id, hello, err := record.For(r, 0)
					if err != nil || !hello {
						t.Fatal(hello, err)
					}
					conn, err := net.Dial("tcp", to.Addr.String())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					if _, err := conn.Write(gloowire.AppendPreamble(nil, id)); err != nil {
						t.Fatal(err)
					}
					// The announcement of rank 0's send proves that the connection was taken for rank r.
					header := make([]byte, gloowire.HeaderSize)
					if r == 2 || c.lazy || c.block == "D-rankseq" {
						_ = conn.SetReadDeadline(time.Now().Add(soon))
						if _, err := io.ReadFull(conn, header); err != nil {
							t.Fatalf("rank %d: %v", r, err)
						}
					}
				}
				wg.Wait()
				if connectErr != nil {
					t.Fatal(connectErr)
				}
				_ = mesh.Close()
			})
		}
	}
}

// publishRecorded sets rank's recorded record with another port, at 127.0.0.2, and its host name where the generation
// has one.
func publishRecorded(t *testing.T, kv *store.Memory, block string, rank int, port uint16) {
	t.Helper()
	for _, f := range recording(t, block) {
		key := strings.Trim(f[2], `"`)
		if f[0] != "set" || f[1] != strconv.Itoa(rank) {
			continue
		}
		raw, err := hex.DecodeString(f[3])
		if err != nil {
			t.Fatal(err)
		}
		record, err := gloowire.ParseRecord(raw, 3)
		switch name := key[strings.LastIndex(key, "/")+1:]; {
		case name == fmt.Sprintf("rank_%d", rank):
			err = kv.Set(context.Background(), hostKey("p", 0, rank), raw)
		case err == nil && name == strconv.Itoa(rank) && !strings.Contains(key, "//1//"):
			at := 0
			if record.Generation == C {
				at = 8 + len(record.Host) + 8
			}
			for i := range record.Addrs {
				binary.BigEndian.PutUint16(raw[at+i*gloowire.AddressSize+2:], port)
				copy(raw[at+i*gloowire.AddressSize+4:], []byte{127, 0, 0, 2})
			}
			err = kv.Set(context.Background(), recordKey("p", 0, rank), raw)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAbandonedConnectSendsItsPreamble ends the context at random moments: a listener that accepted a connection must get
// its 8 bytes, because a PyTorch process may not survive without.
func TestAbandonedConnectSendsItsPreamble(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	record := gloowire.Record{
		Generation: C, Host: "peer", IDs: []int64{5, 6},
		Addrs: []gloowire.Address{{Addr: netip.MustParseAddrPort(ln.Addr().String()), Sequence: gloowire.NoSequence}},
	}
	var wg sync.WaitGroup
	accepted := 0
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted++
			var hello [8]byte
			_ = conn.SetReadDeadline(time.Now().Add(soon))
			if _, err := io.ReadFull(conn, hello[:]); err != nil || gloowire.ParsePreamble(hello) != 5 {
				t.Errorf("connection %d came without its preamble: %x, %v", accepted, hello, err)
			}
			_ = conn.Close()
		}
	})
	for i := range 100 {
		kv := store.NewMemory()
		_ = kv.Set(context.Background(), recordKey("p", 0, 1), record.Append(nil))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i*10)*time.Microsecond)
		mesh, err := Connect(ctx, Config{Rank: 0, Size: 2, Store: kv, Prefix: "p", Generation: C, Devices: []string{"127.0.0.2"}})
		cancel()
		if err == nil {
			_ = mesh.Close()
		} else if c := cohort.CodeOf(err); c != cohort.DeadlineExceeded && c != cohort.Canceled {
			t.Errorf("round %d: %v", i, err)
		}
		_ = kv.Close()
	}
	_ = ln.Close()
	wg.Wait()
	if accepted == 0 {
		t.Error("no round came far enough")
	}
}

func TestConnectErrors(t *testing.T) {
	t.Parallel()
	closedPort := func() netip.AddrPort {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		return netip.MustParseAddrPort(ln.Addr().String())
	}
	record := func(g Generation, addr netip.AddrPort) []byte {
		r := gloowire.Record{Generation: g, Host: "peer", Addrs: []gloowire.Address{{Addr: addr, Sequence: gloowire.NoSequence}}}
		if g == C {
			r.IDs = []int64{0, 1}
		}
		return r.Append(nil)
	}
	for _, c := range []struct {
		name   string
		config func(*Config)
		peer   []byte
		code   cohort.Code
		text   string
	}{
		{"rank out of range", func(c *Config) { c.Rank = 2 }, nil, cohort.InvalidArgument, "rank 2 of 2"},
		{"no store", func(c *Config) { c.Store = nil }, nil, cohort.InvalidArgument, "no store"},
		{"lazy needs D", func(c *Config) { c.Lazy = true }, nil, cohort.InvalidArgument, "generation D"},
		{"no such device", func(c *Config) { c.Devices = []string{"nosuch0"} }, nil, cohort.InvalidArgument, "nosuch0"},
		{"address that is not ours", func(c *Config) { c.Devices = []string{"192.0.2.77"} }, nil, cohort.Unavailable, "192.0.2.77"},
		{"peer is gone", nil, record(C, closedPort()), cohort.PeerLost, "rank 1"},
		{
			"peer of an older generation", nil, record(A, closedPort()), cohort.Mismatch,
			"the peer has PyTorch 1.13 or 2.0, but the group is one of PyTorch 2.3 or later",
		},
		{
			"peer of a newer generation", func(c *Config) { c.Generation = A }, record(C, closedPort()), cohort.Mismatch,
			"the peer has PyTorch 2.3 or later, but the group is one of PyTorch 1.13 or 2.0",
		},
		{"another family", nil, record(C, netip.MustParseAddrPort("[::1]:7")), cohort.Mismatch, "family"},
		{"garbage record", nil, []byte("garbage"), cohort.Protocol, "rank 1"},
		{"peer does not publish", func(c *Config) { c.Timeout = 50 * time.Millisecond }, nil, cohort.DeadlineExceeded, "rank 1"},
		{
			"peer does not dial", func(c *Config) { c.Timeout, c.Devices = 100*time.Millisecond, []string{"127.0.0.1"} },
			record(C, netip.MustParseAddrPort("127.0.0.7:7")), cohort.DeadlineExceeded, "no connection from rank 1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kv := store.NewMemory()
			defer func() { _ = kv.Close() }()
			if c.peer != nil {
				_ = kv.Set(context.Background(), recordKey("p", 0, 1), c.peer)
				_ = kv.Set(context.Background(), hostKey("p", 0, 1), []byte("peer"))
			}
			cfg := Config{Rank: 0, Size: 2, Store: kv, Prefix: "p", Generation: C, Devices: []string{"127.0.0.2"}}
			if c.config != nil {
				c.config(&cfg)
			}
			mesh, err := Connect(within(t, 20*time.Second), cfg)
			if err == nil {
				_ = mesh.Close()
				t.Fatal("connected")
			}
			if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("want %v with %q, got: %v", c.code, c.text, err)
			}
		})
	}
}

// TestConnectEndsAsItsContext: the cause of the caller's context, which may be any error of another operation, is not
// reported as the reason.
func TestConnectEndsAsItsContext(t *testing.T) {
	t.Parallel()
	kv := store.NewMemory()
	defer func() { _ = kv.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := &cohort.Error{Op: "errgroup", Code: cohort.PeerLost, Rank: 7}
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	_, err := Connect(ctx, Config{
		Rank: 0, Size: 2, Store: kv, Prefix: "g", Generation: C, Timeout: time.Minute,
		Devices: []string{"127.0.0.1"},
	})
	if !errors.Is(err, context.Canceled) || cohort.CodeOf(err) != cohort.Canceled {
		t.Errorf("%v (code %v)", err, cohort.CodeOf(err))
	}
}

func TestWorldOfOne(t *testing.T) {
	kv := store.NewMemory()
	defer func() { _ = kv.Close() }()
	m, err := Connect(within(t, soon), Config{Rank: 0, Size: 1, Store: kv, Generation: auto})
	if err != nil {
		t.Fatal(err)
	}
	runPlans(t, []transport.Mesh{m}, 1, 30, 2)
	_ = m.Close()
}

// slowStore takes its time to return from setting a record that others can read already.
type slowStore struct {
	*store.Memory
	release chan struct{}
}

func (s slowStore) Set(ctx context.Context, key string, value []byte) error {
	err := s.Memory.Set(ctx, key, value)
	<-s.release
	return err
}

// TestLazyPeerDialsBeforeConnectReturns: a lazy pair may be used by its peer as soon as the record can be read.
func TestLazyPeerDialsBeforeConnectReturns(t *testing.T) {
	kv := store.NewMemory()
	defer func() { _ = kv.Close() }()
	slow := slowStore{kv, make(chan struct{})}
	join := func(rank int, s KV) (*Mesh, error) {
		return Connect(within(t, soon), Config{
			Rank: rank, Size: 2, Store: s, Prefix: "p", Generation: D, Lazy: true,
			Devices: []string{"127.0.0.1"}, plain: true,
		})
	}
	meshes, errs := make([]*Mesh, 2), make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { meshes[0], errs[0] = join(0, slow) })
	meshes[1], errs[1] = join(1, kv)
	if errs[1] != nil {
		t.Fatal(errs[1])
	}
	send := &transport.Op{Peer: 0, Slot: 1, Buf: []byte{7}}
	meshes[1].Send(send)
	time.Sleep(50 * time.Millisecond) // it dials now, or waits to be dialled
	close(slow.release)
	wg.Wait()
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	recv := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1)}
	meshes[0].Recv(recv)
	if err := errors.Join(meshes[0].Wait(within(t, soon), recv), meshes[1].Wait(within(t, soon), send)); err != nil || recv.Buf[0] != 7 {
		t.Errorf("%v %v", recv.Buf, err)
	}
	for _, m := range meshes {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
}
