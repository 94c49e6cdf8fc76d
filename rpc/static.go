// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// startStatic joins a world of a given size: PyTorch's exact order, since its workers wait for each step.
func (a *Agent) startStatic(ctx context.Context) error {
	rank, size := a.cfg.rank, a.cfg.worldSize
	if err := a.listen(rank); err != nil {
		return err
	}
	var err error
	if a.mixed, err = a.comeTogether(ctx); err != nil {
		return err
	}
	var devices *deviceExchange
	if a.mixed {
		if devices, err = a.exchangeDevices(ctx); err != nil {
			return err
		}
		defer devices.close()
	}
	if err = a.chooseMode(ctx, "true"); err != nil {
		return err
	}
	names, err := a.exchangeNames(ctx, rank, size)
	if err != nil {
		return err
	}
	if err := a.announce(ctx); err != nil {
		return err
	}
	for id, name := range names {
		if id == rank {
			continue
		}
		addr, epoch, err := a.published(ctx, name)
		if err != nil {
			return err
		}
		a.addPeer(name, rrefcore.Worker(id), addr, epoch)
	}
	if err := a.gathers.first(names, func() (int, error) { return a.askForGathers(ctx, names, true) }); err != nil {
		return fmt.Errorf("ask how many all-gathers there were in earlier rounds: %w", err)
	}
	if _, err := a.allGather(ctx, nil); err != nil {
		return err
	}
	if devices != nil {
		return devices.barrier(ctx)
	}
	return nil
}

// exchangeNames publishes the own name and reads all others.
func (a *Agent) exchangeNames(ctx context.Context, rank, size int) ([]string, error) {
	if err := a.st.Set(ctx, keyNames+strconv.Itoa(rank), []byte(a.name)); err != nil {
		return nil, err
	}
	names := make([]string, size)
	seen := map[string]int{a.name: rank}
	names[rank] = a.name
	for id := range names {
		if id == rank {
			continue
		}
		raw, err := a.st.Get(ctx, keyNames+strconv.Itoa(id))
		if err != nil {
			return nil, fmt.Errorf("wait for the name of rank %d: %w", id, err)
		}
		names[id] = string(raw)
		if other, twice := seen[names[id]]; twice {
			return nil, dist.Newf("rpc: join", dist.AlreadyExists, "ranks %d and %d are both called %q", other, id, names[id])
		}
		seen[names[id]] = id
	}
	return names, nil
}

// deviceExchange is the gloo group by which PyTorch's workers tell each other their devices.
type deviceExchange struct {
	mesh   *gloo.Mesh
	engine *gloo.Engine
}

func (d *deviceExchange) close() { _ = d.mesh.Close() }

func (d *deviceExchange) barrier(ctx context.Context) error {
	return d.engine.Run(ctx, &coll.Request{Kind: coll.Barrier, Tag: 2})
}

// exchangeDevices builds the group and takes part in its two all-gathers: sizes, then pickles of name and devices. A Go
// worker has no devices but the CPU.
func (a *Agent) exchangeDevices(ctx context.Context) (*deviceExchange, error) {
	rank, size := a.cfg.rank, a.cfg.worldSize
	cfg := gloo.Config{Rank: rank, Size: size, Store: a.st, Logger: a.cfg.logger, Hook: a.cfg.hook, Group: "rpc", StoreAddr: a.storeAddr()}
	if names := os.Getenv("GLOO_SOCKET_IFNAME"); names != "" {
		cfg.Devices = strings.Split(names, ",")[:1]
	}
	mesh, err := gloo.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &deviceExchange{mesh: mesh, engine: gloo.NewEngine(mesh)}
	fail := func(err error) (*deviceExchange, error) {
		d.close()
		return nil, err
	}
	own, err := (&rpcwire.Encoder{}).Pickle(Tuple{a.name, 0, &Dict{}, []any{}})
	if err != nil {
		return fail(err)
	}
	sizes := make([]byte, 8*size)
	in := binary.LittleEndian.AppendUint64(nil, uint64(len(own)))
	if err := d.engine.Run(ctx, &coll.Request{Kind: coll.AllGather, Tag: 0, DType: tensor.Int64, In: in, Out: sizes}); err != nil {
		return fail(err)
	}
	largest := uint64(0)
	for r := range size {
		n := binary.LittleEndian.Uint64(sizes[8*r:])
		if n > 1<<20 {
			return fail(dist.Newf("rpc: join", dist.Protocol, "rank %d announces %d bytes of devices", r, n))
		}
		largest = max(largest, n)
	}
	block := make([]byte, largest)
	copy(block, own)
	all := make([]byte, largest*uint64(size)) //nolint:gosec // both bounded
	if err := d.engine.Run(ctx, &coll.Request{Kind: coll.AllGather, Tag: 1, DType: tensor.Uint8, In: block, Out: all}); err != nil {
		return fail(err)
	}
	return d, nil
}

// storeAddr returns where the store is, if it has an address.
func (a *Agent) storeAddr() string {
	if a.cfg.storeAddr != "" {
		return a.cfg.storeAddr
	}
	if s, ok := store.UnderlyingNonPrefix(a.st).(interface{ Addr() string }); ok {
		return s.Addr()
	}
	return ""
}
