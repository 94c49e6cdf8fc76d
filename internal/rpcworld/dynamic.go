// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

// Caller is how a worker deals with the others of a dynamic world while it joins and leaves.
type Caller interface {
	// Listen makes this worker reachable under its id, and returns the address for others.
	Listen(id int) (addr string, err error)
	// Add makes another worker known, so that it can be called. Drop forgets it.
	Add(w Worker, addr string, e Entry)
	Drop(name string)
	// AskDevices asks a worker for its devices, Tell tells it that this worker comes, or goes.
	AskDevices(ctx context.Context, name string) error
	Tell(ctx context.Context, name string, comes bool) error
	// Gone reports whether an error of these means that the worker's process has certainly ended.
	Gone(err error) bool
}

// Join joins a world whose workers come and go. When it fails, also because ctx ends, the world is as it was before.
func (w *World) Join(ctx context.Context, c Caller) error {
	if w.cfg.Round < 0 {
		k, err := w.dynamicRound(ctx)
		if err != nil {
			return err
		}
		w.Enter(k)
	}
	if strings.Contains(w.cfg.Name, "-") {
		return dist.Newf("rpc: join", dist.InvalidArgument, "worker name %q: PyTorch workers cannot read a '-' in the list of a dynamic world", w.cfg.Name)
	}
	t, err := w.takeToken(ctx, "join")
	if err != nil {
		return err
	}
	j := &joining{w: w, c: c}
	if err = j.run(ctx); err != nil {
		j.undo(ctx)
	} else {
		err = w.noteRound(ctx)
	}
	if failed := t.release(ctx); err == nil {
		err = failed
	}
	return err
}

// joining is a join under way: what has been done of it.
type joining struct {
	w      *World
	c      Caller
	listed bool
	told   []string
	dead   []string // members whose process has ended
}

func (j *joining) run(ctx context.Context) error {
	w := j.w
	if err := w.chooseMode(ctx, "false"); err != nil {
		return err
	}
	all, err := members(ctx, w.st)
	if err != nil {
		return err
	}
	id, err := w.claimID(ctx, all)
	if err != nil {
		return err
	}
	addr, err := j.c.Listen(id)
	if err != nil {
		return err
	}
	if err = w.announce(ctx, addr); err != nil {
		return err
	}
	moment.At("rpcworld.dynamic.listed")
	j.listed = true // perhaps, if it fails
	if err = w.st.Set(ctx, keyInfos, formatInfos(append(slices.Clone(all), Worker{Name: w.cfg.Name, ID: id}))); err != nil {
		return err
	}
	for _, m := range all {
		there, e, failed := w.Published(ctx, m.Name)
		if failed != nil {
			return failed
		}
		j.c.Add(m, there, e)
	}
	for _, m := range all {
		if err = j.c.AskDevices(ctx, m.Name); err != nil && !j.gone(m.Name, err) {
			return fmt.Errorf("ask worker %q for its devices: %w", m.Name, err)
		}
	}
	for _, m := range all {
		if slices.Contains(j.dead, m.Name) {
			continue
		}
		j.told = append(j.told, m.Name)
		if err = j.c.Tell(ctx, m.Name, true); err != nil && !j.gone(m.Name, err) {
			return fmt.Errorf("tell worker %q: %w", m.Name, err)
		}
	}
	if len(j.dead) == 0 {
		return nil
	}
	for _, name := range j.dead {
		j.c.Drop(name)
	}
	all, err = members(ctx, w.st)
	if err != nil {
		return err
	}
	return w.st.Set(ctx, keyInfos, formatInfos(without(all, j.dead...)))
}

// gone notes a member whose process has ended: whoever joins takes it off the list, or nobody could join any more.
func (j *joining) gone(name string, err error) bool {
	if !j.c.Gone(err) {
		return false
	}
	j.dead = append(j.dead, name)
	return true
}

// undo takes back what others can see of a join that has failed.
func (j *joining) undo(ctx context.Context) {
	if !j.listed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	moment.At("rpcworld.dynamic.undo")
	var work sync.WaitGroup
	for _, name := range j.told {
		work.Go(func() {
			short, stop := context.WithTimeout(ctx, time.Second)
			defer stop()
			_ = j.c.Tell(short, name, false)
		})
	}
	if all, err := members(ctx, j.w.st); err == nil {
		_ = j.w.st.Set(ctx, keyInfos, formatInfos(without(all, j.w.cfg.Name)))
	}
	work.Wait()
}

// claimID takes the id that was asked for, or one that no worker has or had.
func (w *World) claimID(ctx context.Context, all []Worker) (int, error) {
	id := w.cfg.Rank
	if id < 0 {
		var err error
		if id, err = w.freeID(ctx, all); err != nil {
			return 0, err
		}
	}
	for _, m := range all {
		if m.Name == w.cfg.Name {
			return 0, dist.Newf("rpc: join", dist.AlreadyExists, "worker name %q is taken", w.cfg.Name)
		}
		if m.ID == id {
			return 0, dist.Newf("rpc: join", dist.AlreadyExists, "id %d is worker %q's", id, m.Name)
		}
	}
	key := keyNames + strconv.Itoa(id)
	got, err := w.st.CompareAndSet(ctx, key, nil, []byte(w.cfg.Name))
	if err != nil {
		return 0, err
	}
	if string(got) != w.cfg.Name {
		return 0, dist.Newf("rpc: join", dist.AlreadyExists, "id %d was worker %q's: PyTorch workers never reconnect to an id, take a fresh one", id, got)
	}
	return id, w.st.Set(ctx, key, []byte(w.cfg.Name))
}

func (w *World) freeID(ctx context.Context, all []Worker) (int, error) {
	next := 0
	for _, m := range all {
		next = max(next, m.ID+1)
	}
	for ; next <= MaxWorkerID; next++ {
		taken, err := w.st.Check(ctx, keyNames+strconv.Itoa(next))
		if err != nil || !taken {
			return next, err
		}
	}
	return 0, dist.New("rpc: join", dist.Exhausted, "no worker id is left")
}

// Leave tells the other workers of a dynamic world that this one goes, and takes it off the list. It does as much as it can
// in any case, and returns the first error.
func (w *World) Leave(ctx context.Context, c Caller, others func() []string) error {
	t, err := w.takeToken(ctx, "leave")
	if err != nil {
		return err
	}
	var failed error
	dead := []string{}
	for _, name := range others() { // now: another one may have left before
		told := c.Tell(ctx, name, false)
		if told != nil && c.Gone(told) {
			dead = append(dead, name) // nobody else takes it off the list
		}
		if told != nil && failed == nil {
			failed = fmt.Errorf("tell worker %q: %w", name, told)
		}
	}
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	moment.At("rpcworld.dynamic.leave")
	all, err := members(tidy, w.st)
	if err == nil {
		err = w.st.Set(tidy, keyInfos, formatInfos(without(all, append(dead, w.cfg.Name)...)))
	}
	return firstError(failed, err, t.release(ctx))
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
