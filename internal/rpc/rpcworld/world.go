// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcworld is the membership of an RPC world, which lives in a store: who is in it, which of the store's worlds
// it is, who may join or leave at this moment, when all workers have reached the same point, and who has died.
//
// The keys and the order of the steps are PyTorch's, because its workers wait for each of them. Additional keys of Go
// workers are under "cohort/". Package worldcore decides; this one does what its machines ask for. A [World] talks only to the
// store; it calls other workers through a [Caller] and watches
// them through [Watched], so that tests can run it without a network.
package rpcworld

import (
	"context"
	"log/slog"
	"strconv"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// Config says who a worker is.
type Config struct {
	Name   string
	Rank   int // -1 if the world gives one
	Size   int // of a static world, else 0
	Round  int // -1 if it is to be found
	Entry  Entry
	Cohort bool // speaks the cohort transport
	Logger *slog.Logger
}

// World is one worker's view of its world in the store.
type World struct {
	cfg   Config
	base  store.Store // as it was given
	st    store.Store // of the round
	round int
	mixed bool // a static world with PyTorch workers
	torch int  // the rank of one of them

	// gathers are the all-gathers of this worker.
	Gathers *gathers

	mu struct {
		sync.Mutex
		isGo map[string]bool // as far as the store was asked
		st   store.Store     // st, for those who ask while the round is not settled
	}
}

// New returns the view of a worker that has not joined.
func New(st store.Store, cfg Config) *World {
	w := &World{cfg: cfg, base: st, Gathers: newGathers()}
	w.mu.isGo = map[string]bool{}
	w.Enter(max(cfg.Round, 0))
	return w
}

// self is what the machines know about this worker.
func (w *World) self() worldcore.Self {
	me := worldcore.Self{Name: w.cfg.Name, Rank: w.cfg.Rank, Size: w.cfg.Size, Round: w.cfg.Round, Epoch: w.cfg.Entry.Epoch}
	if w.cfg.Cohort {
		me.Entry = string(w.cfg.Entry.text())
	}
	return me
}

// Enter makes k the round of this worker.
func (w *World) Enter(k int) {
	w.round = k
	w.st = store.Prefix(RoundPrefix(k), w.base)
	failpoint.At("rpcworld.round")
	w.mu.Lock()
	w.mu.st = w.st
	w.mu.Unlock()
}

// Round returns which of the store's worlds it is, from 0.
func (w *World) Round() int { return w.round }

// Store returns the store of the round.
func (w *World) Store() store.Store { return w.st }

// Mixed reports whether a static world has PyTorch workers.
func (w *World) Mixed() bool { return w.mixed }

// Static reports whether the world has a fixed size.
func (w *World) Static() bool { return w.cfg.Size > 0 }

// Published waits for the address of a worker, and reads its entry if it is a Go worker that we can speak the cohort
// transport with: else the entry is zero.
func (w *World) Published(ctx context.Context, name string) (addr string, e Entry, err error) {
	raw, err := w.st.Get(ctx, keyAddrs+name)
	if err != nil || !w.cfg.Cohort {
		return string(raw), Entry{}, err
	}
	e, err = w.Entry(ctx, name)
	return string(raw), e, err
}

// Entry reads the entry of a worker; it is zero for one that has published none. It may be called at any time.
func (w *World) Entry(ctx context.Context, name string) (Entry, error) {
	failpoint.At("rpcworld.entry")
	w.mu.Lock()
	st := w.mu.st
	w.mu.Unlock()
	text, err := lookUp(ctx, st, keyCohort+name)
	if err != nil || text == "" {
		return Entry{}, err
	}
	return parseEntry(name, []byte(text))
}

// IsGo reports whether a worker is surely one of ours, on whichever transport.
func (w *World) IsGo(ctx context.Context, name string) bool {
	isGo, err := w.AskIsGo(ctx, name)
	return err == nil && isGo
}

// AskIsGo is IsGo for those who need to know if the store cannot tell, which is asked once.
func (w *World) AskIsGo(ctx context.Context, name string) (bool, error) {
	failpoint.At("rpcworld.is_go")
	w.mu.Lock()
	isGo, known := w.mu.isGo[name]
	w.mu.Unlock()
	if known {
		return isGo, nil
	}
	isGo, err := w.st.Check(ctx, keyGo+name)
	if err != nil {
		return false, err
	}
	failpoint.At("rpcworld.is_go.known")
	w.mu.Lock()
	w.mu.isGo[name] = isGo
	w.mu.Unlock()
	return isGo, nil
}

// Forget drops what is known about a worker that left.
func (w *World) Forget(name string) {
	failpoint.At("rpcworld.forget")
	w.mu.Lock()
	delete(w.mu.isGo, name)
	w.mu.Unlock()
}

// lookUp returns the value of a key, or "".
func lookUp(ctx context.Context, st store.Store, key string) (string, error) {
	there, err := st.Check(ctx, key)
	if err != nil || !there {
		return "", err
	}
	value, err := st.Get(ctx, key)
	return string(value), err
}

// members reads the members of a dynamic world.
func members(ctx context.Context, st store.Store) ([]Worker, error) {
	raw, err := lookUp(ctx, st, keyInfos)
	if err != nil {
		return nil, err
	}
	return worldcore.ParseInfos(raw)
}

// Listed is a worker as the store knows it.
type Listed struct {
	Worker
	Addr  string
	Go    bool // on whichever transport
	Entry Entry
}

// List reads the workers of a world from the store of its round, without joining it.
func List(ctx context.Context, st store.Store) ([]Listed, error) {
	mode, err := lookUp(ctx, st, keyStatic)
	if err != nil {
		return nil, err
	}
	var all []Worker
	switch mode {
	case "":
		return nil, cohort.New("rpc: list workers", cohort.NotFound, "the store has no RPC world")
	case "false":
		if all, err = members(ctx, st); err != nil {
			return nil, err
		}
	default:
		for id := 0; id <= MaxWorkerID; id++ {
			name, failed := lookUp(ctx, st, keyNames+strconv.Itoa(id))
			if failed != nil {
				return nil, failed
			}
			if name == "" {
				break
			}
			all = append(all, Worker{Name: name, ID: id})
		}
	}
	out := make([]Listed, 0, len(all))
	for _, m := range all {
		x := Listed{Worker: m}
		if x.Addr, err = lookUp(ctx, st, keyAddrs+m.Name); err != nil {
			return nil, err
		}
		if x.Go, err = st.Check(ctx, keyGo+m.Name); err != nil {
			return nil, err
		}
		text, err := lookUp(ctx, st, keyCohort+m.Name)
		if err != nil {
			return nil, err
		}
		if text != "" {
			if x.Entry, err = parseEntry(m.Name, []byte(text)); err != nil {
				return nil, err
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// ErrRestart is the error of a start that has to be made again, from [World.ComeTogether] on: it may succeed in another round.
var ErrRestart = worldcore.ErrRestart

// ComeTogether finds the round of a static world and waits until all ranks have shown what they are; see [worldcore.Start]. A
// world without PyTorch ranks needs no gloo group; see [World.Mixed].
func (w *World) ComeTogether(ctx context.Context) error {
	m := worldcore.NewStart(w.self())
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, nil, nil, op) })
	w.torch, w.mixed = m.Mixed()
	w.cfg.Logger.Debug("all ranks have joined", slog.String("worker", w.cfg.Name), slog.Int("round", w.round),
		slog.Bool("mixed", w.mixed))
	return m.Err()
}

// Names publishes the own name and address, waits for those of all ranks, and makes the workers known to c. It returns the
// names in the order of the ranks, or [ErrRestart] if the ranks have to come together again.
func (w *World) Names(ctx context.Context, c Caller, addr string) ([]string, error) {
	m := worldcore.NewNaming(w.self(), w.round, addr, w.mixed)
	w.drive(ctx, m, func(ctx context.Context, op worldcore.Op) worldcore.Event { return w.deal(ctx, c, nil, op) })
	names := make([]string, len(m.Workers()))
	for i, x := range m.Workers() {
		names[i] = x.Name
	}
	return names, m.Err()
}

// LatestRound is the last round with a world, or 0.
func (w *World) LatestRound(ctx context.Context) (int, error) {
	m := worldcore.NewLatest()
	w.drive(ctx, m, nil)
	return m.Round(), m.Err()
}
