// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/store"
)

// The keys of a world in its store, below the prefix of the round. All but the last six are PyTorch's.
const (
	keyStatic  = "rpcIsStaticGroup"
	keyToken   = "RpcGroupManagementToken"
	keyNames   = "names/"
	keyInfos   = "names/_ALL_WORKER_INFOS"
	keyAddrs   = "addrs/"
	keyCohort  = "cohort/"    // + name: the epoch of a Go worker on the cohort transport, set before its address
	keyGo      = "cohort/go/" // + name: a Go worker, whatever it speaks; set before its address
	keyGoRanks = "cohort/rank/"
	keySize    = "cohort/size" // of a static world with Go workers
	keyOver    = "cohort/over" // a static world is about to end in order
	keyLost    = "cohort/lost" // a worker of a static world that has died, once somebody who waited has found out
)

func roundPrefix(k int) string { return "rpc_prefix_" + strconv.Itoa(k) }

// announce publishes this worker's address. The epoch comes first: an address without one is that of a worker which speaks
// PyTorch's transport only.
func (a *Agent) announce(ctx context.Context) error {
	if err := a.st.Set(ctx, keyGo+a.name, nil); err != nil {
		return err
	}
	if a.ep != nil && a.speaksCohort() {
		if err := a.st.Set(ctx, keyCohort+a.name, []byte(strconv.FormatUint(a.epoch, 16))); err != nil {
			return err
		}
	}
	return a.st.Set(ctx, keyAddrs+a.name, []byte("uv://"+a.addr))
}

func (a *Agent) speaksCohort() bool {
	return slices.Contains(a.cfg.transports, TransportCohort)
}

// published reads the address of a worker, and its epoch if it is a Go worker that we can speak the cohort transport with.
func (a *Agent) published(ctx context.Context, name string) (addr string, epoch uint64, err error) {
	raw, err := a.st.Get(ctx, keyAddrs+name)
	if err != nil {
		return "", 0, err
	}
	if !a.speaksCohort() {
		return string(raw), 0, nil
	}
	there, err := a.st.Check(ctx, keyCohort+name)
	if err != nil || !there {
		return string(raw), 0, err
	}
	value, err := a.st.Get(ctx, keyCohort+name)
	if err != nil {
		return "", 0, err
	}
	epoch, err = strconv.ParseUint(string(value), 16, 64)
	if err != nil {
		return "", 0, dist.Newf("rpc: join", dist.Protocol, "the epoch of %q is %q", name, value)
	}
	return string(raw), epoch, nil
}

// goWorker reports whether a worker is one of ours, on whichever transport. The store knows, and is asked once.
func (a *Agent) goWorker(ctx context.Context, name string) bool {
	p, err := a.peer(name)
	if err != nil {
		return false
	}
	p.mu.Lock()
	kind := p.kind
	if p.goish {
		kind = kindGo
	}
	p.mu.Unlock()
	if kind == kindUnknown {
		there, err := a.st.Check(ctx, keyGo+name)
		if err != nil {
			return false
		}
		if kind = kindPyTorch; there {
			kind = kindGo
		}
		p.mu.Lock()
		p.kind = kind
		p.mu.Unlock()
	}
	return kind == kindGo
}

// address returns where a worker listens.
func (a *Agent) address(ctx context.Context, p *peer) (string, error) {
	p.mu.Lock()
	addr := p.addr
	p.mu.Unlock()
	if addr != "" {
		return addr, nil
	}
	addr, epoch, err := a.published(ctx, p.name)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.addr = addr
	if epoch != 0 {
		p.epoch, p.goish = epoch, true
	}
	p.mu.Unlock()
	return addr, nil
}

// chooseMode agrees with the other workers on static or dynamic.
func (a *Agent) chooseMode(ctx context.Context, mode string) error {
	got, err := a.st.CompareAndSet(ctx, keyStatic, nil, []byte(mode))
	if err != nil {
		return err
	}
	if string(got) != mode {
		return dist.Newf("rpc: join", dist.Mismatch,
			"this world was started by workers with%s a world size: all must give one or none (RPC group mixes static and dynamic members)",
			map[string]string{"true": "", "false": "out"}[string(got)])
	}
	return nil
}

// startDynamic joins a world whose workers come and go.
func (a *Agent) startDynamic(ctx context.Context) error {
	if a.cfg.round < 0 {
		k, err := a.dynamicRound(ctx)
		if err != nil {
			return err
		}
		a.enter(k)
	}
	if strings.Contains(a.name, "-") {
		return dist.Newf("rpc: join", dist.InvalidArgument, "worker name %q: PyTorch workers cannot read a '-' in the list of a dynamic world", a.name)
	}
	release, err := a.takeToken(ctx, "join")
	if err != nil {
		return err
	}
	err = a.joinDynamic(ctx)
	if failed := release(err == nil); err == nil {
		err = failed
	}
	return err
}

func (a *Agent) joinDynamic(ctx context.Context) error {
	if err := a.chooseMode(ctx, "false"); err != nil {
		return err
	}
	members, err := readInfos(ctx, a.st)
	if err != nil {
		return err
	}
	id := a.cfg.rank
	if id < 0 {
		if id, err = a.freeRank(ctx, members); err != nil {
			return err
		}
	}
	for _, m := range members {
		if m.Name == a.name {
			return dist.Newf("rpc: join", dist.AlreadyExists, "worker name %q is taken", a.name)
		}
		if m.ID == id {
			return dist.Newf("rpc: join", dist.AlreadyExists, "id %d is worker %q's", id, m.Name)
		}
	}
	key := keyNames + strconv.Itoa(id)
	got, err := a.st.CompareAndSet(ctx, key, nil, []byte(a.name))
	if err != nil {
		return err
	}
	if string(got) != a.name {
		return dist.Newf("rpc: join", dist.AlreadyExists, "id %d was worker %q's: PyTorch workers never reconnect to an id, take a fresh one", id, got)
	}
	if err := a.st.Set(ctx, key, []byte(a.name)); err != nil {
		return err
	}
	if err := a.listen(id); err != nil {
		return err
	}
	if err := a.announce(ctx); err != nil {
		return err
	}
	if err := writeInfos(ctx, a.st, append(members, a.Self())); err != nil {
		return err
	}
	for _, m := range members {
		addr, epoch, err := a.published(ctx, m.Name)
		if err != nil {
			return err
		}
		a.addPeer(m.Name, rrefcore.Worker(m.ID), addr, epoch) //nolint:gosec // checked by readInfos
	}
	me := rpcwire.WorkerInfo{Name: a.name, ID: rpcwire.WorkerID(a.id)}
	for _, m := range members {
		if err := a.callAgain(ctx, m.Name, deviceInfos, nil); err != nil {
			return fmt.Errorf("ask worker %q for its devices: %w", m.Name, err)
		}
	}
	for _, m := range members {
		if err := a.callAgain(ctx, m.Name, updateMembership, []any{me, []any{}, &Dict{}, true}); err != nil {
			return fmt.Errorf("tell worker %q: %w", m.Name, err)
		}
	}
	return nil
}

// leaveDynamic tells everybody that this worker goes.
func (a *Agent) leaveDynamic(ctx context.Context) error {
	release, err := a.takeToken(ctx, "leave")
	if err != nil {
		return err
	}
	me := rpcwire.WorkerInfo{Name: a.name, ID: rpcwire.WorkerID(a.id)}
	var failed error
	for _, w := range a.Workers() {
		if w.Name == a.name {
			continue
		}
		if told := a.callAgain(ctx, w.Name, updateMembership, []any{me, []any{}, &Dict{}, false}); told != nil && failed == nil {
			failed = fmt.Errorf("tell worker %q: %w", w.Name, told)
		}
	}
	members, err := readInfos(ctx, a.st)
	if err == nil {
		rest := members[:0]
		for _, m := range members {
			if m.Name != a.name {
				rest = append(rest, m)
			}
		}
		err = writeInfos(ctx, a.st, rest)
	}
	if failed == nil {
		failed = err
	}
	if err := release(true); failed == nil {
		failed = err
	}
	return failed
}

// takeToken enters the part of joining and leaving that one worker does at a time.
func (a *Agent) takeToken(ctx context.Context, what string) (release func(finished bool) error, err error) {
	token := "Token_for_" + a.name + "_" + what
	for {
		got, err := a.st.CompareAndSet(ctx, keyToken, nil, []byte(token))
		if err != nil {
			return nil, err
		}
		if string(got) == token {
			break
		}
		if err := a.st.Wait(ctx, string(got)); err != nil {
			e := dist.Wrap("rpc: "+what, dist.DeadlineExceeded, err)
			e.Detail = fmt.Sprintf("waiting for the worker that holds %q; if it died, no worker can join or leave any more", got)
			return nil, e
		}
		// The holder says "Done" after it has given the token back, so another look soon succeeds. A worker that comes
		// again under its old name finds its old word, hence the pause.
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, dist.FromContext("rpc: "+what, ctx)
		}
	}
	return func(bool) error {
		if err := a.st.Set(ctx, keyToken, nil); err != nil {
			return err
		}
		return a.st.Set(ctx, token, []byte("Done"))
	}, nil
}

// freeRank finds an id that no worker has or had.
func (a *Agent) freeRank(ctx context.Context, members []WorkerInfo) (int, error) {
	next := 0
	for _, m := range members {
		next = max(next, m.ID+1)
	}
	for ; next <= maxWorkerID; next++ {
		taken, err := a.st.Check(ctx, keyNames+strconv.Itoa(next))
		if err != nil || !taken {
			return next, err
		}
	}
	return 0, dist.New("rpc: join", dist.Exhausted, "no worker id is left")
}

// readInfos reads the members of a dynamic world.
func readInfos(ctx context.Context, st store.Store) ([]WorkerInfo, error) {
	there, err := st.Check(ctx, keyInfos)
	if err != nil || !there {
		return nil, err
	}
	raw, err := st.Get(ctx, keyInfos)
	if err != nil {
		return nil, err
	}
	var members []WorkerInfo
	for entry := range strings.SplitSeq(string(raw), ",") {
		if entry == "" {
			continue
		}
		at := strings.LastIndexByte(entry, '-')
		if at < 0 {
			return nil, dist.Newf("rpc: join", dist.Protocol, "the list of workers has an entry %q", entry)
		}
		id, err := strconv.Atoi(entry[at+1:])
		if err != nil || id < 0 || id > maxWorkerID {
			return nil, dist.Newf("rpc: join", dist.Protocol, "the list of workers has an entry %q", entry)
		}
		members = append(members, WorkerInfo{Name: entry[:at], ID: id})
	}
	return members, nil
}

func writeInfos(ctx context.Context, st store.Store, members []WorkerInfo) error {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, "%s-%d,", m.Name, m.ID)
	}
	return st.Set(ctx, keyInfos, []byte(b.String()))
}

// left forgets a worker that says it goes. What a former worker of its name has said is ignored.
func (a *Agent) left(name string, id rrefcore.Worker) {
	p, err := a.peer(name)
	if err != nil || p.worker != id {
		return
	}
	p.mu.Lock()
	p.left = true
	p.mu.Unlock()
	a.peerDied(p)
	a.removePeer(name)
}
