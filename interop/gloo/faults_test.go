// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// stepLine reads a worker's line about step i.
func stepLine(t *testing.T, p *torchtest.Proc, i int) string {
	t.Helper()
	for {
		if rest, ok := strings.CutPrefix(p.Line(t), fmt.Sprintf("step %d ", i)); ok {
			return rest
		}
	}
}

// TestPyTorchRankKilled kills a PyTorch rank in the middle of operations: what needs it fails within a second.
func TestPyTorchRankKilled(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{{Op: "barrier"}, {Op: "sleep", Seconds: 60}}
		w := start(t, tr, 3, []int{0}, plan, limit, nil, nil)
		m := w.members[0]
		if _, err := m.run(w.ctx, 0, plan[0]); err != nil {
			t.Fatal(err)
		}
		stepLine(t, w.procs[2], 0)
		fromDead := &transport.Op{Peer: 2, Slot: 77, Buf: make([]byte, 4)}
		toDead := &transport.Op{Peer: 2, Slot: 78, Buf: make([]byte, 4)}
		fromAlive := &transport.Op{Peer: 1, Slot: 77, Buf: make([]byte, 4)}
		m.mesh.Recv(fromDead)
		m.mesh.Send(toDead)
		m.mesh.Recv(fromAlive)
		collective := make(chan error, 1)
		go func() {
			_, err := m.run(w.ctx, 1, step{Op: "all_reduce", DType: "float32", N: 1000})
			collective <- err
		}()
		time.Sleep(50 * time.Millisecond) // let the operations get under way
		begin := time.Now()
		w.procs[2].Kill()
		for _, op := range []*transport.Op{fromDead, toDead} {
			checkLost(t, m.mesh.Wait(w.ctx, op), 2)
		}
		err := <-collective
		took := time.Since(begin)
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.PeerLost {
			t.Fatalf("the collective: %v", err)
		}
		if took > limit/2 { // promised is one second; the machine may be very busy
			t.Fatalf("took %v", took)
		}
		t.Logf("known %v after the kill", took.Round(time.Millisecond))
	})
}

func checkLost(t *testing.T, err error, rank int) {
	t.Helper()
	var e *cohort.Error
	if !errors.As(err, &e) || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(rank) || e.Peer == "" {
		t.Fatalf("want peer lost of rank %d: %v", rank, err)
	}
}

// TestGoRankGone ends the Go rank while PyTorch waits for it: PyTorch must see a clean error, not a crash or a hang.
func TestGoRankGone(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for name, leave := range map[string]func(m *member){
			"closed":   func(m *member) { _ = m.mesh.Close() },
			"failed":   func(m *member) { m.mesh.Fail(errors.New("test")) },
			"mismatch": nil,
		} {
			t.Run(name, func(t *testing.T) {
				plan := []step{{Op: "barrier"}, {Op: "all_reduce", DType: "float32", N: 1000}}
				w := start(t, tr, 2, []int{1}, plan, limit, nil, nil)
				m := w.members[1]
				if _, err := m.run(w.ctx, 0, plan[0]); err != nil {
					t.Fatal(err)
				}
				stepLine(t, w.procs[0], 0)
				if leave != nil {
					leave(m)
				} else {
					// More elements than PyTorch has room for: it would abort if they were sent.
					_, err := m.run(w.ctx, 1, step{Op: "all_reduce", DType: "float32", N: 5000})
					if c := cohort.CodeOf(err); c != cohort.Mismatch && c != cohort.Protocol {
						t.Fatalf("want a mismatch: %v", err)
					}
				}
				begin := time.Now()
				line := stepLine(t, w.procs[0], 1)
				if !strings.HasPrefix(line, "error") || !strings.Contains(line, "onnection") {
					t.Errorf("PyTorch saw: %s", line)
				}
				if took := time.Since(begin); took > limit/2 {
					t.Errorf("PyTorch noticed after %v", took)
				}
				ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
				defer cancel()
				if code, err := w.procs[0].Wait(ctx); err != nil || code != 3 {
					t.Errorf("PyTorch ended with %d, %v, want its own exit code 3", code, err)
				}
			})
		}
	})
}

// TestPyTorchSendsTooMuch has PyTorch send more than was asked for: only that pair fails, and nothing overflows.
func TestPyTorchSendsTooMuch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{{Op: "ring", DType: "float32", N: 100, Tag: 3, GoOn: true}}
		w := start(t, tr, 2, []int{0}, plan, limit, nil, nil)
		m := w.members[0]
		room := make([]byte, 64)
		op := &transport.Op{Peer: 1, Slot: 3, Buf: room[:40]}
		m.mesh.Recv(op)
		err := m.mesh.Wait(w.ctx, op)
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.Protocol || e.Rank != 1 {
			t.Fatalf("want a protocol error of rank 1: %v", err)
		}
		for i, b := range room {
			if b != 0 {
				t.Fatalf("byte %d was written", i)
			}
		}
		if line := stepLine(t, w.procs[1], 0); !strings.HasPrefix(line, "error") {
			t.Errorf("PyTorch saw: %s", line)
		}
	})
}

// TestStoppedPyTorchRank cannot be told from a slow one on gloo's wire: the operation's timeout ends it, and names it.
func TestStoppedPyTorchRank(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{{Op: "barrier"}, {Op: "sleep", Seconds: 60}}
		w := start(t, tr, 2, []int{0}, plan, limit, nil, nil)
		m := w.members[0]
		if _, err := m.run(w.ctx, 0, plan[0]); err != nil {
			t.Fatal(err)
		}
		w.procs[1].Signal(syscall.SIGSTOP)
		defer w.procs[1].Signal(syscall.SIGCONT)
		m.timeout = 300 * time.Millisecond
		_, err := m.run(w.ctx, 1, step{Op: "all_reduce", DType: "float32", N: 10})
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.DeadlineExceeded || e.Rank != cohort.NoRank ||
			!strings.Contains(err.Error(), "it waits for rank 1") {
			t.Fatalf("want a timeout that says that rank 1 is awaited and blames none: %v", err)
		}
	})
}

// throughProxy rewrites a PyTorch rank's published port to that of a proxy. The Go rank binds to 127.0.0.2, the greater
// address, so it is the one that dials.
type throughProxy struct {
	gloo.KV
	t      *testing.T
	size   int
	suffix string
	proxy  **faultnet.Proxy
	// up and down are the faults that the proxy begins with.
	up, down faultnet.Fault
}

func (k throughProxy) Get(ctx context.Context, key string) ([]byte, error) {
	raw, err := k.KV.Get(ctx, key)
	if err != nil || !strings.HasSuffix(key, k.suffix) {
		return raw, err
	}
	r, err := gloowire.ParseRecord(raw, k.size)
	if err != nil {
		return nil, err
	}
	if *k.proxy == nil {
		target, _, _, err := r.For(1, 0)
		if err != nil {
			return nil, err
		}
		p, err := faultnet.ListenTCP(target.Addr.String())
		if err != nil {
			return nil, err
		}
		k.t.Cleanup(func() { _ = p.Close() })
		p.SetUp(k.up)
		p.SetDown(k.down)
		*k.proxy = p
	}
	port := netip.MustParseAddrPort((*k.proxy).Addr()).Port()
	for i := range r.Addrs {
		r.Addrs[i].Addr = netip.AddrPortFrom(r.Addrs[i].Addr.Addr(), port)
	}
	return r.Append(nil), nil
}

// TestBrokenNetwork puts a proxy between Go and PyTorch: slow, then cut.
func TestBrokenNetwork(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{
			{Op: "all_reduce", DType: "float32", N: 300_000},
			{Op: "broadcast", DType: "float32", N: 300_000, Root: 1},
			{Op: "barrier"},
		}
		var proxy *faultnet.Proxy
		w := start(t, tr, 2, []int{1}, plan, limit, nil, func(c *gloo.Config) {
			c.Devices = []string{"127.0.0.2"}
			c.Store = throughProxy{KV: c.Store, t: t, size: 2, suffix: "/0/0", proxy: &proxy}
		})
		if proxy == nil {
			t.Fatal("the proxy is not in the way")
		}
		proxy.SetUp(faultnet.Fault{Delay: 20 * time.Millisecond})
		m := w.members[1]
		want := make([]string, 2)
		for i := range 2 {
			h, err := m.run(w.ctx, i, plan[i])
			if err != nil {
				t.Fatal(err)
			}
			want[i] = h
			if got := stepLine(t, w.procs[0], i); got != want[i] {
				t.Fatalf("step %d: PyTorch %s, Go %s", i, got, want[i])
			}
		}
		op := &transport.Op{Peer: 0, Slot: 9, Buf: make([]byte, 4)}
		m.mesh.Recv(op)
		proxy.Cut()
		checkLost(t, m.mesh.Wait(w.ctx, op), 0)
		if line := stepLine(t, w.procs[0], 2); !strings.HasPrefix(line, "error") {
			t.Errorf("PyTorch saw: %s", line)
		}
	})
}

// TestGarbageOnOurPort opens unidentified connections while a world forms.
func TestGarbageOnOurPort(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{{Op: "all_reduce", DType: "float32", N: 5}, {Op: "barrier"}}
		world(t, tr, 2, []int{0}, plan, limit, nil, func(c *gloo.Config) { c.Store = dialling{c.Store, t, c.Generation} })
	})
}

// dialling visits every address that is published before the peers can see it.
type dialling struct {
	gloo.KV
	t          *testing.T
	generation gloo.Generation
}

func (k dialling) Set(ctx context.Context, key string, value []byte) error {
	if r, err := gloowire.ParseRecord(value, 2); err == nil {
		for i := range 20 {
			d := net.Dialer{}
			if k.generation == gloo.A {
				// There the source address is all that counts.
				d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}
			}
			conn, err := d.DialContext(ctx, "tcp", r.Addrs[0].Addr.String())
			if err != nil {
				k.t.Error(err)
				return err
			}
			k.t.Cleanup(func() { _ = conn.Close() })
			if i%2 == 0 {
				_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
			}
		}
	}
	return k.KV.Set(ctx, key, value)
}

// TestDevices runs with the interface given, with two devices, and with PyTorch's and our defaults.
func TestDevices(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{
			{Op: "barrier"},
			{Op: "all_reduce", DType: "float32", N: 1000},
			{Op: "all_reduce", DType: "float32", N: 1000},
			{Op: "ring", DType: "float32", N: 100, Tag: 101},
			{Op: "ring", DType: "float32", N: 100, Tag: 102},
			{Op: "recv_any", DType: "float32", N: 100, Tag: 103},
			{Op: "monitored_barrier"},
			{Op: "overlap", DType: "float32", N: 1000, Count: 6},
			{Op: "sub_groups", DType: "float32", N: 10, Pairs: pairsOf(3)},
			{Op: "barrier"},
		}
		for name, c := range map[string]struct {
			env     string
			devices []string
		}{
			"default":      {"", nil},
			"interface":    {"lo", []string{"lo"}},
			"two-devices":  {"lo,lo", []string{"lo", "lo"}},
			"bind-address": {"lo", []string{"127.0.0.1"}},
		} {
			t.Run(name, func(t *testing.T) {
				env := map[string]string{gloo.IfnameEnv: c.env}
				change := func(cfg *gloo.Config) { cfg.Devices = c.devices }
				want := world(t, tr, 3, nil, plan, limit, env, change)
				for _, gos := range [][]int{{0}, {1}} {
					got := world(t, tr, 3, gos, plan, limit, env, change)
					for r := range want {
						for i := range plan {
							if want[r][i] != got[r][i] {
								t.Errorf("Go %v: rank %d, step %d (%s): all-PyTorch %s, with Go %s", gos, r, i, plan[i],
									want[r][i], got[r][i])
							}
						}
					}
				}
			})
		}
	})
}
