// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/internal/store/storelog"
)

// BenchmarkWrite appends and syncs batches of records of 100 bytes in a real folder.
func BenchmarkWrite(b *testing.B) {
	for _, records := range []int{1, 16, 64, 512} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			l, err := storelog.Open(b.TempDir(), storelog.Options{}, storelog.Replay{})
			if err != nil {
				b.Fatal(err)
			}
			batch := make([]storelog.Record, records)
			for i := range batch {
				batch[i].Data = make([]byte, 100)
			}
			for b.Loop() {
				if _, err := l.Write(batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*records)/b.Elapsed().Seconds(), "records/s")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkRecover opens a log of a million records of 100 bytes: alone, and with each put into a map of that many keys.
func BenchmarkRecover(b *testing.B) {
	const million = 1_000_000
	folder := b.TempDir()
	l, err := storelog.Open(folder, storelog.Options{}, storelog.Replay{})
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]storelog.Record, 1000)
	for i := range million {
		batch[i%1000].Data = fmt.Appendf(nil, "%016d%84d", i, 0)
		if i%1000 == 999 {
			if _, err := l.Write(batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	n := 0
	open := func(b *testing.B, apply func(storelog.Record) error) {
		b.Helper()
		n = 0
		l, err := storelog.Open(folder, storelog.Options{}, storelog.Replay{Record: apply})
		if err != nil || n != million {
			b.Fatal(n, err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("log", func(b *testing.B) {
		for b.Loop() {
			open(b, func(storelog.Record) error { n++; return nil })
		}
	})
	b.Run("keys", func(b *testing.B) {
		for b.Loop() {
			keys := map[string][]byte{}
			open(b, func(r storelog.Record) error {
				keys[string(r.Data[:16])] = append([]byte(nil), r.Data[16:]...)
				n = len(keys)
				return nil
			})
		}
	})
}
