// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/store"
)

// startStatic starts a rank of a world of two as an agent does.
func startStatic(ctx context.Context, w *World, all *fakes) (names []string, err error) {
	for again := true; again; again = errors.Is(err, ErrRestart) {
		if err = w.ComeTogether(ctx); err == nil {
			names, err = w.Names(ctx, fake{all, w.cfg.Name}, "host:1")
		}
	}
	return names, err
}

// All ranks of a world have died when some of them had published their names. The next start over the same store finds that, whichever
// comes first, and succeeds in the next round.
func TestStartAfterAllHaveDied(t *testing.T) {
	for _, first := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			st := store.NewMemory()
			defer func() { _ = st.Close() }()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			old := store.Prefix(RoundPrefix(0), st)
			for key, value := range map[string]string{
				"cohort/rank/0": "1", "cohort/rank/1": "2", "cohort/size": "2",
				keyStatic: "true", keyNames + "0": "w0",
			} {
				if err := old.Set(ctx, key, []byte(value)); err != nil {
					t.Fatal(err)
				}
			}
			all := newFakes()
			begun := time.Now()
			var ranks sync.WaitGroup
			for rank, name := range []string{"w0", "w1"} {
				ranks.Go(func() {
					if rank != first {
						time.Sleep(5 * time.Second)
					}
					w := New(st, config(name, rank, 2))
					names, err := startStatic(ctx, w, all)
					if err != nil || !slices.Equal(names, []string{"w0", "w1"}) || w.Round() != 1 {
						t.Errorf("%s, when rank %d comes first: names %v in round %d: %v", name, first, names, w.Round(), err)
					}
				})
			}
			ranks.Wait()
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A PyTorch rank that has failed to start tries again, after the Go rank does. The Go rank follows it.
func TestPyTorchGoesOnWhileGoWaits(t *testing.T) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sign := func(round int) {
		if err := store.Prefix(RoundPrefix(round), st).Set(ctx, "0/rank_1", nil); err != nil {
			t.Error(err)
		}
	}
	sign(0)
	w := New(st, config("w0", 0, 2))
	if err := w.ComeTogether(ctx); err != nil || !w.Mixed() || w.Round() != 0 {
		t.Fatalf("mixed %v in round %d: %v", w.Mixed(), w.Round(), err)
	}
	var later sync.WaitGroup
	defer later.Wait()
	later.Go(func() {
		time.Sleep(100 * time.Millisecond)
		sign(1)
	})
	if _, err := w.ExchangeDevices(ctx, nil, ""); !errors.Is(err, ErrRestart) {
		t.Fatalf("the wait for the PyTorch rank ends with %v", err)
	}
	if err := w.ComeTogether(ctx); err != nil || !w.Mixed() || w.Round() != 1 {
		t.Errorf("then mixed %v in round %d: %v", w.Mixed(), w.Round(), err)
	}
}

// What a PyTorch rank has left of a start that has failed names a port where nothing listens any more. That is not a reason to give up: the
// rank has not come yet, and is followed when it does.
func TestPyTorchLeavesItsAddress(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]bool{"tries again": true, "does not come": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := store.NewMemory()
			defer func() { _ = st.Close() }()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			// Nothing listens there, and it is a lower address than any of this rank, so that this one dials.
			dead := gloowire.Record{
				Generation: gloowire.C, Host: "host", IDs: []int64{0, 0},
				Addrs: []gloowire.Address{{Addr: netip.MustParseAddrPort("127.0.0.1:256"), Sequence: gloowire.NoSequence}},
			}
			sign := func(round int) {
				if err := store.Prefix(RoundPrefix(round), st).Set(ctx, "0/1", dead.Append(nil)); err != nil {
					t.Error(err)
				}
			}
			sign(0)
			w := New(st, config("w0", 0, 2))
			if err := w.ComeTogether(ctx); err != nil || !w.Mixed() {
				t.Fatalf("mixed %v: %v", w.Mixed(), err)
			}
			var later sync.WaitGroup
			defer later.Wait()
			later.Go(func() {
				time.Sleep(1500 * time.Millisecond)
				if retries {
					sign(1)
				} else {
					cancel()
				}
			})
			_, err := w.ExchangeDevices(ctx, nil, "127.0.0.1:1")
			if retries {
				if !errors.Is(err, ErrRestart) {
					t.Errorf("the wait for the PyTorch rank ends with %v", err)
				}
				return
			}
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != 1 || !strings.Contains(err.Error(), "127.0.0.1:256") ||
				ctx.Err() == nil {
				t.Errorf("after the end of the context %v: %v", ctx.Err(), err)
			}
		})
	}
}
