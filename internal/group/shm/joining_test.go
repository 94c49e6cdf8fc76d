// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/store"
)

// stillLimit is the heartbeat limit of these tests.
const stillLimit = time.Second

// joiners are the live ranks of a group, while a test plays one that is stopped as it joins.
type joiners struct {
	t     *testing.T
	ctx   context.Context //nolint:containedctx // of one test
	store store.Store
	tasks sync.WaitGroup
}

func newJoiners(t *testing.T) *joiners {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	j := &joiners{t: t, ctx: ctx, store: store.NewMemory()}
	t.Cleanup(func() {
		cancel()
		_ = j.store.Close()
	})
	return j
}

func (j *joiners) config(rank int) Config {
	return Config{Size: 3, Rank: rank, Exchange: j.store, HeartbeatLimit: stillLimit}
}

// stopped returns a joining rank that does not proceed.
func (j *joiners) stopped(rank int) *joining {
	c := j.config(rank)
	if err := c.validate(); err != nil {
		j.t.Fatal(err)
	}
	s := newJoining(c)
	j.t.Cleanup(s.cleanUp)
	return s
}

// join lets a rank join that must find out that another one is stopped, and take no other for it.
func (j *joiners) join(rank, stopped int) {
	j.tasks.Go(func() {
		c := j.config(rank)
		c.OnLost = func(l transport.Loss) {
			if l.How == transport.Died && l.Rank != stopped {
				j.t.Errorf("rank %d reports that rank %d is lost, not rank %d: %v", rank, l.Rank, stopped, l.Err)
			}
		}
		e, err := Join(j.ctx, c)
		if err == nil {
			_ = e.Close()
		}
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != cohort.Rank(stopped) || j.ctx.Err() != nil {
			j.t.Errorf("rank %d: %v", rank, err)
		}
	})
}

// TestStoppedBeforeItReachesAll: rank 2 is stopped when it has reached rank 0 only. Rank 0 has all its connections and counts
// heartbeats; rank 1 still waits for rank 2, and must not be taken for stopped.
func TestStoppedBeforeItReachesAll(t *testing.T) {
	t.Parallel()
	j := newJoiners(t)
	j.join(0, 2)
	j.join(1, 2)
	two := j.stopped(2)
	if err := two.dial(j.ctx, 0); err != nil {
		t.Fatal(err)
	}
	two.endBeat()
	j.tasks.Wait()
}

// TestStoppedBeforeItWelcomesAll: rank 0 is stopped when it has given the segment to one of the others only. The one that waits for it
// must not let the other wait: who has all its connections counts heartbeats, and both name rank 0.
func TestStoppedBeforeItWelcomesAll(t *testing.T) {
	t.Parallel()
	for welcomed := 1; welcomed <= 2; welcomed++ {
		t.Run(strconv.Itoa(welcomed), func(t *testing.T) {
			t.Parallel()
			j := newJoiners(t)
			zero := j.stopped(0)
			var err error
			if zero.file, zero.seg, err = createSegment(&zero.config); err != nil {
				t.Fatal(err)
			}
			zero.beat()
			zero.endBeat()
			if zero.listener, err = zero.listen(j.ctx); err != nil {
				t.Fatal(err)
			}
			j.join(welcomed, 0)
			u, err := zero.listener.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			if _, err = zero.greet(j.ctx, u); err != nil {
				t.Fatal(err)
			}
			zero.conns[welcomed] = u
			j.join(3-welcomed, 0)
			j.tasks.Wait()
		})
	}
}

// TestGreetingIsBounded: a connection that sends nothing delays the others for half a heartbeat limit at most: a rank that has all its
// connections would take those that wait behind it for stopped.
func TestGreetingIsBounded(t *testing.T) {
	t.Parallel()
	j := newJoiners(t)
	zero := j.stopped(0)
	zero.config.HeartbeatLimit = 100 * time.Millisecond
	var err error
	if zero.listener, err = zero.listen(j.ctx); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", zero.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	u, err := zero.listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	began := time.Now()
	if _, err = zero.greet(j.ctx, u); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if took := time.Since(began); took > helloLimit/2 {
		t.Errorf("the others waited for %v", took)
	}
}

// TestOtherUsersAreRefused: a rank shares its memory with its own user and with root alone, even if another user has the token.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	me := os.Geteuid()
	for name, c := range map[string]struct {
		uid     int
		err     error
		welcome bool
	}{
		"this user": {uid: me, welcome: true},
		"root":      {uid: 0, welcome: true},
		"another":   {uid: me + 1},
		"unknown":   {uid: me, err: errors.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zero, u, peer := greeted(t, func() {})
			zero.userOf = func(*net.UnixConn) (int, error) { return c.uid, c.err }
			rank, err := zero.greet(t.Context(), u)
			_ = u.Close()
			reply, rights := make([]byte, 8), make([]byte, 64)
			n, attached, _, _, _ := peer.ReadMsgUnix(reply, rights)
			if welcome := err == nil && rank == 2 && n == 1 && attached > 0; welcome != c.welcome ||
				!c.welcome && (err == nil || n > 0 || attached > 0) {
				t.Errorf("rank %d, %v; %d bytes and %d bytes of rights", rank, err, n, attached)
			}
		})
	}
}

// TestUserOfAConnection: the kernel reports which user is at the other end. Root can be another user for a moment, and is refused then.
func TestUserOfAConnection(t *testing.T) {
	t.Parallel()
	want := os.Geteuid()
	as := func() { // the thread ends with its goroutine, which has locked it
		const other = 65534
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), other, ^uintptr(0)); err == 0 {
			want = other
		}
	}
	zero, u, _ := greeted(t, as)
	if uid, err := zero.userOf(u); err != nil || uid != want {
		t.Fatalf("user %d, %v, want %d", uid, err, want)
	}
	if _, err := zero.greet(t.Context(), u); (err == nil) != (want == os.Geteuid()) {
		t.Error(err)
	}
}

// greeted returns rank 0 and both ends of a connection that a thread which has called as made to it, with the hello of rank 2.
func greeted(t *testing.T, as func()) (zero *joining, u, peer *net.UnixConn) {
	t.Helper()
	j := newJoiners(t)
	zero = j.stopped(0)
	var err error
	if zero.file, zero.seg, err = createSegment(&zero.config); err != nil {
		t.Fatal(err)
	}
	if zero.listener, err = zero.listen(j.ctx); err != nil {
		t.Fatal(err)
	}
	to, err := net.ResolveUnixAddr("unix", zero.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var dialed sync.WaitGroup
	dialed.Go(func() {
		runtime.LockOSThread()
		as()
		peer, err = net.DialUnix("unix", nil, to)
	})
	dialed.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	if u, err = zero.listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	hello := binary.LittleEndian.AppendUint64(nil, segmentMagic)
	hello = append(binary.LittleEndian.AppendUint32(hello, 2), zero.token[:]...)
	if _, err = peer.Write(hello); err != nil {
		t.Fatal(err)
	}
	return zero, u, peer
}

// TestConnectEndsWithItsFirstFailure: rank 0 cannot join and rank 1 never connects. A rank that connects to both does not wait for rank 1.
func TestConnectEndsWithItsFirstFailure(t *testing.T) {
	t.Parallel()
	j := newJoiners(t)
	two := j.stopped(2)
	if err := j.store.Set(j.ctx, two.key(0), []byte(errorPrefix+"no memory")); err != nil {
		t.Fatal(err)
	}
	err := two.connect(j.ctx)
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != 0 || !strings.Contains(err.Error(), "no memory") || j.ctx.Err() != nil {
		t.Errorf("%v, after %v", err, j.ctx.Err())
	}
}

// TestGiveUpJoiningNamesTheLate: who waits no longer for all to map the segment names the rank that has not, if it is one, or the rank
// that its own reason is about. The others are notified.
func TestGiveUpJoiningNamesTheLate(t *testing.T) {
	t.Parallel()
	about1 := cohort.New("test", cohort.PeerLost, "")
	about1.Rank = 1
	for name, c := range map[string]struct {
		beats [3]uint64
		cause error
		want  cohort.Rank
	}{
		"one is late":           {[3]uint64{1, 1, 0}, context.Canceled, 2},
		"two are late":          {[3]uint64{1, 0, 0}, context.Canceled, cohort.NoRank},
		"no rank is late":       {[3]uint64{1, 1, 1}, context.Canceled, cohort.NoRank},
		"the reason has a rank": {[3]uint64{1, 1, 0}, about1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zero := newJoiners(t).stopped(0)
			var err error
			if zero.file, zero.seg, err = createSegment(&zero.config); err != nil {
				t.Fatal(err)
			}
			for r, n := range c.beats {
				atomic.StoreUint64(&zero.seg.life(r).beats, n)
			}
			e := newEngine(zero.config, zero.seg)
			if got, ok := errors.AsType[*cohort.Error](e.giveUpJoining(c.cause)); !ok || got.Rank != c.want || !errors.Is(got, c.cause) {
				t.Errorf("%v, want rank %v", got, c.want)
			}
			one := zero.config
			one.Rank = 1
			if err := newEngine(one, zero.seg).abortReason("test"); err == nil {
				t.Error("rank 1 is not notified")
			}
		})
	}
}
