// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"fmt"
	"io"
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

// BenchmarkRecover opens a log of a million records of 100 bytes and puts them into a map of that many keys: from records, and
// from a snapshot.
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
	for b.Loop() {
		keys := map[string][]byte{}
		l, err := storelog.Open(folder, storelog.Options{}, storelog.Replay{
			Snapshot: func(_ storelog.LSN, r io.Reader) error { _, err := io.Copy(io.Discard, r); return err },
			Record: func(r storelog.Record) error {
				keys[string(r.Data[:16])] = append([]byte(nil), r.Data[16:]...)
				return nil
			},
		})
		if err != nil || len(keys) != million {
			b.Fatal(len(keys), err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
