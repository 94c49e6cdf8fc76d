// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/binary"
	"os"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

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
	cfg := gloo.Config{Rank: rank, Size: size, Store: a.world.Store(), Logger: a.cfg.logger, Hook: a.cfg.hook, Group: "rpc", StoreAddr: a.storeAddr()}
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
	if s, ok := store.UnderlyingNonPrefix(a.world.Store()).(interface{ Addr() string }); ok {
		return s.Addr()
	}
	return ""
}
