// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// listenStore returns a store's server and a client.
func listenStore(t *testing.T) (*tcpstore.Server, *tcpstore.Client) {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	client, err := tcpstore.Dial(t.Context(), server.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// meshPrefixOf is where the PyTorch ranks of the world's group publish their addresses.
func meshPrefixOf(layout gloo.Layout) string {
	return layout.MeshPrefix(gloo.DefaultPrefix, gloo.GroupName(0))
}

// publishAsTorch publishes what a PyTorch rank does that then does nothing more.
func publishAsTorch(t *testing.T, s *tcpstore.Client, layout gloo.Layout, rank, size int) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	record := gloowire.Record{Generation: gloowire.C, Host: "torch", IDs: make([]int64, size), Addrs: []gloowire.Address{
		{Addr: netip.MustParseAddrPort(l.Addr().String()), Sequence: gloowire.NoSequence},
	}}
	must(t, s.Set(t.Context(), layout.FirstKey(meshPrefixOf(layout), rank), record.Append(nil)))
	return l
}

// TestDeathBeforeConnectingBesidePyTorch: in a group with a PyTorch rank, a Go rank dies when it has taken its place, before it connects to
// another rank: before the others have come, or when they wait for it. They do not wait until their time is over, and all name it.
func TestDeathBeforeConnectingBesidePyTorch(t *testing.T) {
	t.Parallel()
	const size, torch = 4, 1
	for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
		for _, dead := range []int{0, 2, 3} {
			for _, last := range []bool{false, true} {
				t.Run(fmt.Sprintf("layout %d, rank %d, last %v", layout, dead, last), func(t *testing.T) {
					t.Parallel()
					ctx := ctxOf(t)
					server, s := listenStore(t)
					publishAsTorch(t, s, layout, torch, size)
					place := func(r int) string { return fmt.Sprintf("cohort/group/0/%d/0/rank/%d", size, r) }
					die := func() {
						_, kill := startMortalOf(t, size, Auto, 10*time.Second, server.Addr(), dead, untilPlaced)
						must(t, s.Wait(ctx, place(dead)))
						kill()
					}
					var rest []int
					for r := range size {
						if r != dead && r != torch {
							rest = append(rest, r)
						}
					}
					if !last {
						die()
					}
					ended := make(chan error, 1)
					go func() {
						ended <- each(len(rest), func(i int) error {
							g, err := New(ctx, s, cohort.Rank(rest[i]), size, WithConnectTimeout(20*time.Second))
							if g != nil {
								_ = g.Close()
							}
							if e := asError(err); e == nil || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(dead) {
								return fmt.Errorf("rank %d: %w", rest[i], err)
							}
							return nil
						})
					}()
					if last {
						for _, r := range rest {
							key := layout.FirstKey(meshPrefixOf(layout), r)
							if dead < torch { // they look for it before they see that there is a PyTorch rank
								key = place(r)
							}
							must(t, s.Wait(ctx, key))
						}
						die()
					}
					must(t, <-ended)
				})
			}
		}
	}
}

// TestDeathWhileOthersAreMissing: a rank dies when it has taken its place, while another has not come. The others go on
// waiting, for it may be replaced, but say who has died: in the store while they wait, and in the error when their time
// is over.
func TestDeathWhileOthersAreMissing(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*tcpstore.Server, *tcpstore.Client) {
		t.Helper()
		server, s := listenStore(t)
		_, kill := startMortal(t, Auto, 10*time.Second, server.Addr(), 1)
		must(t, s.Wait(ctxOf(t), "cohort/group/0/3/0/rank/1"))
		kill()
		return server, s
	}
	t.Run("until the time is over", func(t *testing.T) {
		t.Parallel()
		_, s := begin(t)
		_, err := New(ctxOf(t), s, 0, 3, WithConnectTimeout(5*time.Second)) // it takes its place in milliseconds, and looks after 3 s, too
		e := asError(err)
		if e == nil || e.Code != cohort.DeadlineExceeded || e.Rank != 2 ||
			!strings.Contains(err.Error(), "rank 2 of group 0 did not appear; rank 1 joined and then died") {
			t.Errorf("%v", err)
		}
	})
	t.Run("until it is replaced", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(ctxOf(t))
		defer cancel()
		server, s := begin(t)
		made := make(chan error, 1)
		go func() {
			g, err := New(ctx, s, 0, 3)
			if g != nil {
				defer func() { _ = g.Close() }()
			}
			made <- err
		}()
		shown := func() string {
			var keys []string
			for _, w := range server.Stats().Waits {
				keys = append(keys, w.Key)
			}
			return strings.Join(keys, "; ")
		}
		for !strings.Contains(shown(), "/rank 1, which joined and then died") {
			select {
			case err := <-made:
				t.Fatalf("it did not wait: %v", err)
			case <-ctx.Done():
				t.Fatalf("the store shows waits for %q", shown())
			case <-time.After(10 * time.Millisecond):
			}
		}
		_, _ = startMortal(t, Auto, 10*time.Second, server.Addr(), 1)
		_, _ = startMortal(t, Auto, 10*time.Second, server.Addr(), 2)
		must(t, <-made)
	})
}

// TestTorchRankDiesWhileOthersAreMissing: a PyTorch rank has connected and dies, while another rank has not come. It
// cannot have finished, so the Go rank need not wait for the other one, nor its own time.
func TestTorchRankDiesWhileOthersAreMissing(t *testing.T) {
	t.Parallel()
	for _, rank := range []int{0, 2} {
		t.Run(fmt.Sprintf("rank %d", rank), func(t *testing.T) {
			t.Parallel()
			const size = 3
			ctx := ctxOf(t)
			_, s := listenStore(t)
			torch := (rank + 1) % size
			l := publishAsTorch(t, s, gloo.Torch26, torch, size)
			ended := make(chan error, 1)
			go func() {
				g, err := New(ctx, s, cohort.Rank(rank), size, WithConnectTimeout(20*time.Second), WithPeers("torch-2.6"))
				if g != nil {
					_ = g.Close()
				}
				ended <- err
			}()
			raw, err := s.Get(ctx, gloo.Torch26.FirstKey(meshPrefixOf(gloo.Torch26), rank))
			must(t, err)
			record, err := gloowire.ParseRecord(raw, size)
			must(t, err)
			theirs, id, _, err := record.For(torch, rank)
			must(t, err)
			dials, err := gloowire.Dials(netip.MustParseAddrPort(l.Addr().String()), theirs.Addr)
			must(t, err)
			var conn net.Conn
			if dials {
				conn, err = net.Dial("tcp", theirs.Addr.String())
				must(t, err)
				_, err = conn.Write(gloowire.AppendPreamble(nil, id))
			} else {
				conn, err = l.Accept()
			}
			must(t, err)
			must(t, conn.Close())
			err = <-ended
			if e := asError(err); e == nil || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(torch) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestGivenUpBesidePyTorch: in a group with a PyTorch rank, a Go rank gives up before it connects, while another waits
// for it. That one does not wait until its time is over, and says who abandoned the group, and why if that is known.
func TestGivenUpBesidePyTorch(t *testing.T) {
	t.Parallel()
	const size, torch, other = 3, 1, 2
	for name, c := range map[string]struct {
		giveUp func(ctx context.Context, s *tcpstore.Client) error
		code   cohort.Code
		words  string
	}{
		"it cannot be in this group": {func(ctx context.Context, s *tcpstore.Client) error {
			if _, err := New(ctx, s, other, size, WithTransport(TCP),
				WithConnectTimeout(20*time.Second)); cohort.CodeOf(err) != cohort.Mismatch {
				return fmt.Errorf("rank %d: %w", other, err)
			}
			return nil
		}, cohort.Mismatch, "rank 2 abandoned the group: rank 0 wants transport"},
		"it does not say why": {func(ctx context.Context, s *tcpstore.Client) error {
			p, err := assemble.Take(ctx, s, fmt.Sprintf("cohort/group/0/%d", size), other, size, []byte(`{"version":1,"transport":"auto"}`))
			if err != nil {
				return err
			}
			return p.GiveUp(ctx)
		}, cohort.Aborted, "rank 2 abandoned the group"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := ctxOf(t)
			_, s := listenStore(t)
			publishAsTorch(t, s, gloo.Torch26, torch, size)
			ended := make(chan error, 1)
			go func() {
				g, err := New(ctx, s, 0, size, WithConnectTimeout(20*time.Second))
				if g != nil {
					_ = g.Close()
				}
				ended <- err
			}()
			must(t, s.Wait(ctx, gloo.Torch26.FirstKey(meshPrefixOf(gloo.Torch26), 0)))
			must(t, c.giveUp(ctx, s))
			err := <-ended
			if e := asError(err); e == nil || e.Code != c.code || e.Rank != other || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v", err)
			}
		})
	}
}

// slowReason is a store that does not answer yet who asks it why a group cannot be formed.
type slowReason struct{ *tcpstore.Client }

func (s slowReason) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, "/end") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Client.Get(ctx, key)
}

// TestFirstReasonBesidePyTorch: in a group with a PyTorch rank, a rank cannot reach another, which has recorded that a
// third died, and left. It names the third one.
func TestFirstReasonBesidePyTorch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason string
		code   cohort.Code
		rank   cohort.Rank
	}{
		"a death":      {fmt.Sprintf(`{"code":%d,"rank":2,"by":1,"detail":"it died"}`, cohort.PeerLost), cohort.PeerLost, 2},
		"cancellation": {fmt.Sprintf(`{"code":%d,"rank":-1,"by":1,"detail":"it was cancelled"}`, cohort.Canceled), cohort.Aborted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 3
			ctx := ctxOf(t)
			_, s := listenStore(t)
			// Of two ports that one dials whose bytes, read backwards, are the greater number: no rank has a smaller
			// one, and no process listens there.
			record := gloowire.Record{Generation: gloowire.C, Host: "torch", IDs: make([]int64, size), Addrs: []gloowire.Address{
				{Addr: netip.MustParseAddrPort("127.0.0.1:256"), Sequence: gloowire.NoSequence},
			}}
			must(t, s.Set(ctx, gloo.Torch26.FirstKey(meshPrefixOf(gloo.Torch26), 1), record.Append(nil)))
			must(t, s.Set(ctx, fmt.Sprintf("cohort/group/0/%d/0/end", size), []byte(c.reason)))
			_, err := New(ctx, slowReason{s}, 0, size, WithConnectTimeout(20*time.Second))
			if e := asError(err); e == nil || e.Code != c.code || e.Rank != c.rank {
				t.Errorf("%v", err)
			}
		})
	}
}
