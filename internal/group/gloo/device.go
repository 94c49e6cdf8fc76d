// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloomatch"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

func itoa(i int) string { return strconv.Itoa(i) }

// device is what gloo calls a context: the connections of one device and the machine that matches their messages.
type device struct {
	cfg   *Config
	index int
	host  string // ours
	watch *watch
	pairs []*pair
	ids   []int64 // what each rank writes when it dials us; generations B to D
	users *peeruid.Policy

	mu      sync.Mutex // guards the machine and the queues of all pairs
	machine *gloomatch.Machine
	closing bool

	listener *listener  // generations B to D
	wanted   chan *pair // lazy pairs that are used for the first time
	ended    chan struct{}
	end      context.CancelFunc
	failing  sync.Once
	wg       sync.WaitGroup
}

func newDevice(cfg *Config, index int, host string) *device {
	d := &device{cfg: cfg, index: index, host: host, machine: gloomatch.New(cfg.Rank, cfg.Size), pairs: make([]*pair, cfg.Size)}
	d.users = peeruid.Default(nil, peeruid.ToLog(cfg.Logger))
	life, end := context.WithCancel(context.Background())
	d.end, d.ended = end, make(chan struct{})
	context.AfterFunc(life, func() { close(d.ended) })
	if cfg.Lazy {
		d.wanted = make(chan *pair, cfg.Size)
		d.wg.Add(1)
		go d.connectWanted(life)
	}
	for r := range d.pairs {
		if r != cfg.Rank {
			d.pairs[r] = newPair(d, r)
		}
	}
	return d
}

func (d *device) send(op *transport.Op) {
	op.Begin()
	d.use(op)
	failpoint.At("gloo.send")
	d.mu.Lock()
	d.machine.Send(op)
	d.finish()
}

func (d *device) recv(op *transport.Op) {
	op.Begin()
	d.use(op)
	failpoint.At("gloo.recv")
	d.mu.Lock()
	d.machine.Recv(op)
	d.finish()
}

// use starts the connecting of lazy pairs that op needs.
func (d *device) use(op *transport.Op) {
	if !d.cfg.Lazy {
		return
	}
	if op.Peer != transport.AnyPeer {
		if op.Peer >= 0 && op.Peer < len(d.pairs) && d.pairs[op.Peer] != nil {
			d.pairs[op.Peer].connectLazily()
		}
		return
	}
	for r, p := range d.pairs {
		if p != nil && op.Accepts(r) {
			p.connectLazily()
		}
	}
}

// wait returns when op is complete.
func (d *device) wait(ctx context.Context, op *transport.Op) error {
	failpoint.At("gloo.wait")
	return op.Await(ctx)
}

func (d *device) cancel(op *transport.Op) bool {
	failpoint.At("gloo.cancel")
	d.mu.Lock()
	ok := d.machine.Cancel(op)
	d.finish()
	return ok
}

// finish carries out the machine's effects, releases the lock and writes what can be written without waiting. One
// event of the machine emits frames to one peer only.
func (d *device) finish() {
	var dirty *pair
	effects := d.machine.Effects
	for i := range effects {
		e := &effects[i]
		if !e.Emit() {
			e.Op.Complete(e.Err)
			continue
		}
		p := d.pairs[e.Peer]
		if p.queue(e) {
			dirty = p
		}
	}
	clear(effects)
	d.machine.Effects = effects[:0]
	if dirty == nil || !dirty.claim() {
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	failpoint.At("gloo.push")
	dirty.push()
}

// fail ends all ops and connections. Another call waits for the first: nothing ends a connection before its last word.
func (d *device) fail(err error) {
	d.failing.Do(func() {
		failpoint.At("gloo.fail")
		d.mu.Lock()
		d.machine.Fail(err)
		d.finish()
		notice := noticeOf(err)
		var wg sync.WaitGroup
		for _, p := range d.pairs {
			if p != nil {
				wg.Go(func() { p.giveUp(&notice, err) })
			}
		}
		failpoint.At("gloo.fail.wait")
		wg.Wait()
		if d.listener != nil {
			d.listener.stop()
		}
	})
}

func (d *device) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Err()
}

func (d *device) close() {
	failpoint.At("gloo.close")
	d.mu.Lock()
	d.closing = true
	d.machine.Fail(errClosed())
	d.finish()
	failpoint.At("gloo.close.end")
	d.end()
	if d.listener != nil {
		d.listener.stop()
	}
	var wg sync.WaitGroup
	for _, p := range d.pairs {
		if p != nil {
			wg.Go(p.close)
		}
	}
	failpoint.At("gloo.close.pairs")
	wg.Wait()
	failpoint.At("gloo.close.tasks")
	d.wg.Wait()
}

// noticeOf is what the other Go ranks get when the group fails with err.
func noticeOf(err error) gloowire.Notice {
	n := gloowire.Notice{Code: cohort.CodeOf(err), Rank: -1, Text: err.Error()}
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		n.Rank = int(e.Rank)
		if e.Detail != "" {
			n.Text = e.Detail
		}
	}
	return n
}

// lostError is the error of a lost peer.
func (d *device) lostError(p *pair, code cohort.Code, cause error, detail string) error {
	e := cohort.New("gloo: connection", code, "")
	e.Err = cause
	e.Rank = cohort.Rank(p.peer)
	e.Peer = p.address()
	e.Detail = detail
	return e
}

// Timing of generation Auto.
const (
	detectPoll = 10 * time.Millisecond
	// detectLimit is how long Auto waits for a peer to show its generation. If none does, all ranks may be waiting for each other.
	detectLimit = 3 * time.Second
)

// detect finds the generation by what peers put into the store. A rank of generation A or B sets its host name before
// anything else; one of C or D sets only its record.
func (d *device) detect(ctx context.Context) (Generation, error) {
	check, ok := d.cfg.Store.(checker)
	if !ok {
		return auto, cohort.New("gloo: detect generation", cohort.NotSupported,
			"the store cannot look for keys without waiting: set the generation")
	}
	limit, cancel := context.WithTimeout(ctx, detectLimit)
	defer cancel()
	old, err := d.poll(limit, func(r int) (bool, bool, error) {
		has, err := check.Check(limit, hostKey(d.cfg.Prefix, d.index, r))
		if has || err != nil {
			return has, true, err
		}
		has, err = check.Check(limit, recordKey(d.cfg.Prefix, d.index, r))
		if has && err == nil { // it may have set its host name between the two polls
			again, againErr := check.Check(limit, hostKey(d.cfg.Prefix, d.index, r))
			if again || againErr != nil {
				return again, true, againErr
			}
		}
		return has, false, err
	})
	if err != nil {
		return d.undecided(ctx, err, C)
	}
	if !old {
		return C, nil
	}
	// A or B: the records differ, but a peer with a higher rank waits for our host name first.
	if err = d.announceHost(ctx); err != nil {
		return auto, err
	}
	var found Generation
	_, err = d.poll(limit, func(r int) (bool, bool, error) {
		key := recordKey(d.cfg.Prefix, d.index, r)
		if has, checkErr := check.Check(limit, key); !has || checkErr != nil {
			return false, false, checkErr
		}
		raw, getErr := d.cfg.Store.Get(limit, key)
		if getErr != nil {
			return false, false, getErr
		}
		record, parseErr := gloowire.ParseRecord(raw, d.cfg.Size)
		found = record.Generation
		return parseErr == nil, true, parseErr
	})
	if err != nil {
		return d.undecided(ctx, err, A)
	}
	return found, nil
}

// poll asks about every peer until look answers found for one, and returns look's second value.
func (d *device) poll(ctx context.Context, look func(rank int) (found, value bool, err error)) (bool, error) {
	tick := time.NewTicker(detectPoll)
	defer tick.Stop()
	for {
		for r := range d.pairs {
			if r == d.cfg.Rank {
				continue
			}
			if found, value, err := look(r); found || err != nil {
				return value, err
			}
		}
		failpoint.At("gloo.detect")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, cohort.FromContext(ctx, "gloo: detect generation")
		}
	}
}

// undecided returns fallback when only the time for detection is over.
func (d *device) undecided(ctx context.Context, err error, fallback Generation) (Generation, error) {
	if ctx.Err() == nil && cohort.CodeOf(err) == cohort.DeadlineExceeded {
		return fallback, nil
	}
	return auto, err
}
