// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	tokenSize    = 16
	helloSize    = 8 + 4 + tokenSize
	helloLimit   = 5 * time.Second
	welcome      = 'K'
	goodbye      = 'C'
	errorPrefix  = "error "
	addressField = "unix "
)

// HostID names what ranks must have in common to share memory: the booted kernel, the network namespace, in which abstract
// sockets live, and the user with the namespace that gives its number a meaning, because a rank shares its memory with no other
// user. Two ranks with the same value can try.
func HostID() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, _ := os.Readlink("/proc/self/ns/net")
	users, _ := os.Readlink("/proc/self/ns/user")
	return fmt.Sprintf("%s %s %s %d", strings.TrimSpace(string(boot)), network, users, os.Geteuid())
}

// Join makes this process a rank of a segment and returns when all ranks are there. Every rank must call it.
func Join(ctx context.Context, c Config) (*Engine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	j := newJoining(c)
	joining, stop := j.untilFailed(ctx)
	defer stop()
	e, err := j.run(joining)
	j.endBeat() // the engine beats from here on
	if err != nil {
		err = j.failed(ctx, joining, err)
		j.cleanUp()
		return nil, err
	}
	j.closeListener()
	if err := e.start(joining, j); err != nil {
		err = j.failed(ctx, joining, err)
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// failedKey is where a rank that cannot join reports that. All ranks join or none does: the others, which may wait for a connection
// of that rank, give up at once.
func (j *joining) failedKey() string { return j.config.Name + "/shm/failed" }

// failed notifies the other ranks that this one cannot join, unless they know or the caller has given up, and returns why. It is
// called before this rank closes its connections: a rank that sees one end finds the reason, and does not report a death.
func (j *joining) failed(ctx, joining context.Context, err error) error {
	if cause := context.Cause(joining); ctx.Err() == nil && joining.Err() != nil && cause != nil {
		return cause
	}
	if ctx.Err() != nil || j.config.Exchange == nil {
		return err
	}
	failpoint.At("shm.join.failed")
	if other := j.otherFailed(ctx); other != nil {
		return other
	}
	if j.config.OnGiveUp != nil {
		j.config.OnGiveUp(err)
	}
	blamed := j.config.Rank
	if e, ok := errors.AsType[*cohort.Error](err); ok && e.Rank != cohort.NoRank {
		blamed = int(e.Rank) // this rank cannot join because of that one
	}
	_ = j.config.Exchange.Set(ctx, j.failedKey(), fmt.Appendf(nil, "%d %v", blamed, err))
	return err
}

// checker is an exchange that can look for a key without waiting for it.
type checker interface {
	Check(ctx context.Context, keys ...string) (bool, error)
}

// otherFailed returns the error of another rank that cannot join, or nil.
func (j *joining) otherFailed(ctx context.Context) error {
	look, ok := j.config.Exchange.(checker)
	if !ok {
		return nil
	}
	if has, err := look.Check(ctx, j.failedKey()); err != nil || !has {
		return nil //nolint:nilerr // a store that does not answer reports nothing about the others
	}
	text, err := j.config.Exchange.Get(ctx, j.failedKey())
	if err != nil {
		return nil //nolint:nilerr // likewise
	}
	rank, reason, _ := strings.Cut(string(text), " ")
	e := cohort.New("shm: join", cohort.Unavailable, "not all ranks can join: "+reason)
	if r, err := strconv.Atoi(rank); err == nil {
		e.Rank = cohort.Rank(r)
	}
	return e
}

// failedPause is how often a joining rank polls whether another one failed.
const failedPause = 20 * time.Millisecond

// untilFailed returns a context that ends when another rank has reported that it cannot join, and a function that ends the watch.
func (j *joining) untilFailed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if _, ok := j.config.Exchange.(checker); !ok {
		return ctx, func() { cancel(nil) }
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		t := time.NewTicker(failedPause)
		defer t.Stop()
		for {
			failpoint.At("shm.join.poll.wait")
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			failpoint.At("shm.join.poll")
			if err := j.otherFailed(ctx); err != nil {
				cancel(err)
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		failpoint.At("shm.join.polled")
		tasks.Wait()
	}
}

// joining is a rank that joins.
type joining struct {
	config   Config
	token    [tokenSize]byte
	listener *net.UnixListener // nil at the last rank
	folder   string            // of the listener's socket, if it has a name
	conns    []*net.UnixConn
	file     *os.File
	seg      *segment
	beating  sync.WaitGroup // from the moment that the segment is there
	beaten   chan struct{}  // ends it
	userOf   func(*net.UnixConn) (int, error)
}

func newJoining(c Config) *joining {
	return &joining{config: c, conns: make([]*net.UnixConn, c.Size), beaten: make(chan struct{}), userOf: peerUID}
}

func (j *joining) cleanUp() {
	for _, c := range j.conns {
		if c != nil {
			_ = c.Close()
		}
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	if j.seg != nil {
		j.seg.unmap()
	}
	j.closeListener()
}

func (j *joining) closeListener() {
	if j.listener != nil {
		_ = j.listener.Close()
	}
	if j.folder != "" {
		_ = os.RemoveAll(j.folder)
	}
}

func (j *joining) key(rank int) string { return j.config.Name + "/shm/" + strconv.Itoa(rank) }

func (j *joining) run(ctx context.Context) (*Engine, error) {
	c := &j.config
	if c.Rank == 0 {
		var err error
		if j.file, j.seg, err = createSegment(c); err != nil {
			if c.Size > 1 {
				_ = c.Exchange.Set(ctx, j.key(0), []byte(errorPrefix+err.Error()))
			}
			return nil, err
		}
		j.beat()
	}
	if c.Rank < c.Size-1 {
		var err error
		if j.listener, err = j.listen(ctx); err != nil {
			_ = c.Exchange.Set(ctx, j.key(c.Rank), []byte(errorPrefix+err.Error()))
			return nil, err
		}
	}
	if err := j.connect(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // it may have set the deadlines of connections that are to last
		return nil, j.missing(ctx, "shm: join")
	}
	return newEngine(*c, j.seg), nil
}
