// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"strings"
	"testing"
)

// FuzzTable: lines of a table in /proc are read or left out, whatever they hold.
func FuzzTable(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:7077 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4711 1 0000 100 0 0 10 0\n")
	f.Add("1: 00000000000000000000000001000000:0016 00000000000000000000000001000000:8000 02 0:0 01:00000012 00000003 0 0 99 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		readTable(strings.NewReader(text), func([]byte) bool { return true }, func(s Socket) {
			if !s.Local.Addr().IsValid() {
				t.Errorf("no address: %+v", s)
			}
		})
	})
}
