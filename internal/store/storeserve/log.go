// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"log/slog"
	"sync"
	"time"
)

// reporter writes the log from a goroutine of its own, so that a slow log never delays a client. Of lines that say the same
// it writes a few in a while and then how many more there were: thousands of clients can be cut in a second.
type reporter struct {
	logger *slog.Logger
	lines  chan line
	stop   chan struct{}
	done   chan struct{}

	mu struct {
		sync.Mutex

		same map[string]*sameLines // by message and code
	}
}

type line struct {
	msg   string
	attrs []slog.Attr
}

// sameLines are lines of one kind since a moment.
type sameLines struct {
	since   time.Time
	written int
	left    int // those that were not
}

const (
	reporterQueue = 256
	// sameMost is how many lines of one kind are written in sameTime.
	sameMost = 5
	sameTime = 10 * time.Second
)

func newReporter(logger *slog.Logger) *reporter {
	r := &reporter{logger: logger, lines: make(chan line, reporterQueue), stop: make(chan struct{}), done: make(chan struct{})}
	r.mu.same = map[string]*sameLines{}
	go r.run()
	return r
}

// reasonAttr is why something was not done.
func reasonAttr(reason error) slog.Attr { return slog.String("reason", reason.Error()) }

// warn writes a line. The kind is what lines that say the same have in common; there are few of them.
func (r *reporter) warn(msg, kind string, attrs ...slog.Attr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := msg + ": " + kind
	same := r.mu.same[key]
	if same == nil {
		same = &sameLines{since: time.Now()}
		r.mu.same[key] = same
	}
	if same.written < sameMost {
		select {
		case r.lines <- line{"tcpstore: " + msg, attrs}:
			same.written++
			return
		default: // the log is slower than that
		}
	}
	same.left++
}

// sum returns a line for every kind whose time is up, or for all, that says how many lines were left out.
func (r *reporter) sum(all bool) (lines []line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, same := range r.mu.same {
		if !all && time.Since(same.since) < sameTime {
			continue
		}
		if same.left > 0 {
			lines = append(lines, line{
				"tcpstore: more of the same",
				[]slog.Attr{slog.String("what", key), slog.Int("lines_left_out", same.left)},
			})
		}
		delete(r.mu.same, key)
	}
	return lines
}

func (r *reporter) run() {
	defer close(r.done)
	tick := time.NewTicker(sameTime)
	defer tick.Stop()
	for {
		select {
		case l := <-r.lines:
			r.write(l)
		case <-tick.C:
			for _, l := range r.sum(false) {
				r.write(l)
			}
		case <-r.stop:
			for {
				select {
				case l := <-r.lines:
					r.write(l)
					continue
				default:
				}
				break
			}
			for _, l := range r.sum(true) {
				r.write(l)
			}
			return
		}
	}
}

func (r *reporter) write(l line) {
	r.logger.LogAttrs(nil, slog.LevelWarn, l.msg, l.attrs...) //nolint:staticcheck,sloglint // no context; texts are those of warn's callers
}

// end writes what is queued and joins the goroutine.
func (r *reporter) end() {
	close(r.stop)
	<-r.done
}
