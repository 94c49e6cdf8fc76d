// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"
)

// benchLoad measures closed loops and prints rows like those of bench/peers.
type benchLoad struct {
	app   *app
	group string
	peer  string
	dur   time.Duration
	only  *regexp.Regexp // of cases; nil means all
}

func (l *benchLoad) wanted(name string) bool { return l.only == nil || l.only.MatchString(name) }

// emit prints one value.
func (l *benchLoad) emit(name string, value float64, unit string) {
	row := struct {
		Group string  `json:"group"`
		Case  string  `json:"case"`
		Peer  string  `json:"peer"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
	}{l.group, name, l.peer, value, unit}
	_ = json.NewEncoder(l.app.Out).Encode(row)
}

// run has callers call fn in closed loops, first to warm up, then measured. With size it reports the bandwidth of size
// bytes in each direction, else the rate.
func (l *benchLoad) run(name string, callers, size int, fn func() error) error {
	if !l.wanted(name) {
		return nil
	}
	if _, _, err := l.loop(callers, l.dur/5, fn); err != nil {
		return err
	}
	took, elapsed, err := l.loop(callers, l.dur, fn)
	if err != nil {
		return err
	}
	slices.Sort(took)
	l.emit(name+".p50", micros(took[len(took)/2]), "us")
	if len(took) >= 200 {
		l.emit(name+".p99", micros(took[len(took)*99/100]), "us")
	}
	if size > 0 {
		l.emit(name+".bw", 2*float64(size)*float64(len(took))/elapsed.Seconds()/1e9, "GB/s")
		return nil
	}
	l.emit(name+".ops", float64(len(took))/elapsed.Seconds(), "op/s")
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func (l *benchLoad) loop(callers int, dur time.Duration, fn func() error) ([]time.Duration, time.Duration, error) {
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	start := time.Now()
	end := start.Add(dur)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			// At least once: on a busy machine the time may be over before a caller runs.
			for t := time.Now(); (len(took[c]) == 0 || t.Before(end)) && errs[c] == nil; {
				errs[c] = fn()
				u := time.Now()
				took[c] = append(took[c], u.Sub(t))
				t = u
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return nil, 0, err
		}
	}
	return slices.Concat(took...), elapsed, nil
}

// cancelAtEOF ends the work of a process whose parent, which holds its standard input open, has gone.
func (a *app) cancelAtEOF(cancel context.CancelFunc) {
	go func() {
		_, _ = io.Copy(io.Discard, a.In)
		cancel()
	}()
}
