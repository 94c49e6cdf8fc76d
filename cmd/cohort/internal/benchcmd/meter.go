// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"
)

// meter measures closed loops and prints rows like those of bench/peers.
type meter struct {
	out   io.Writer
	group string
	peer  string
	dur   time.Duration
	only  *regexp.Regexp // of cases; nil means all
}

func (m *meter) wanted(name string) bool { return m.only == nil || m.only.MatchString(name) }

// emit prints one value.
func (m *meter) emit(name string, value float64, unit string) {
	row := struct {
		Group string  `json:"group"`
		Case  string  `json:"case"`
		Peer  string  `json:"peer"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
	}{m.group, name, m.peer, value, unit}
	_ = json.NewEncoder(m.out).Encode(row)
}

// run has callers call fn in closed loops, first to warm up, then measured. With size it reports the bandwidth of size
// bytes in each direction, else the rate.
func (m *meter) run(name string, callers, size int, fn func() error) error {
	if !m.wanted(name) {
		return nil
	}
	if _, _, err := m.loop(callers, m.dur/5, fn); err != nil {
		return err
	}
	took, elapsed, err := m.loop(callers, m.dur, fn)
	if err != nil {
		return err
	}
	slices.Sort(took)
	m.emit(name+".p50", micros(took[len(took)/2]), "us")
	if len(took) >= 200 {
		m.emit(name+".p99", micros(took[len(took)*99/100]), "us")
	}
	if size > 0 {
		m.emit(name+".bw", 2*float64(size)*float64(len(took))/elapsed.Seconds()/1e9, "GB/s")
		return nil
	}
	m.emit(name+".ops", float64(len(took))/elapsed.Seconds(), "op/s")
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func (m *meter) loop(callers int, dur time.Duration, fn func() error) ([]time.Duration, time.Duration, error) {
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
