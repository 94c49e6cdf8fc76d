// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
)

// TestXids: errors of GPUs are found among other records, with and without a process.
func TestXids(t *testing.T) {
	t.Parallel()
	got := jobscan.Xids([]string{
		"6,339,5140900,-;NET: Registered protocol family 10",
		"3,1093,7223000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n SUBSYSTEM=pci\n " +
			"DEVICE=+pci:0000:3b:00.0\n",
		"3,1094,7223000001,-;NVRM: Xid (PCI:0000:5e:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping",
		"3,1095,7223000002,-;NVRM: Xid (PCI:0000:5e:00.0): 31, pid=77, name=a b, Ch 00000008, intr 10000000. MMU Fault",
		"4,1096,1,-;NVRM: Xid (PCI:0000:5e:00): 48",
		"12,a;NVRM: Xid (PCI:0000:5e:00): 48", "NVRM: Xid (PCI:0000:5e:00): 48", "", ";",
		"1,2,3,-;NVRM: Xid (PCI:..): 99999999999999999999", "1,2,x,-;NVRM: Xid (PCI:0000:5e:00): 48",
	})
	want := []jobscan.Xid{
		{Device: "0000:3b:00", Number: 79, PID: 1234, At: 7223 * time.Second, Text: "GPU has fallen off the bus."},
		{Device: "0000:5e:00", Number: 63, At: 7223*time.Second + time.Microsecond, Text: "Row Remapper: New row marked for remapping"},
		{
			Device: "0000:5e:00.0", Number: 31, PID: 77, At: 7223*time.Second + 2*time.Microsecond,
			Text: "Ch 00000008, intr 10000000. MMU Fault",
		},
		{Device: "0000:5e:00", Number: 48, At: time.Microsecond},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if _, fatal := want[0].Meaning(); !fatal {
		t.Error("a lost GPU is not fatal")
	}
	if _, fatal := want[1].Meaning(); fatal {
		t.Error("a remapped row is fatal")
	}
}

// TestReadKernelLog: a file that may not be read, or is not a log, gives no records and no error.
func TestReadKernelLog(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "kmsg")
	if jobscan.ReadKernelLog(name) != nil {
		t.Error("records of a file that does not exist")
	}
	if err := os.WriteFile(name, []byte("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := jobscan.Xids(jobscan.ReadKernelLog(name)); len(all) != 1 || all[0].Number != 79 {
		t.Errorf("%+v", all)
	}
	for _, record := range jobscan.ReadKernelLog("/dev/kmsg") { // the real one, where this user may
		if record == "" {
			t.Error("an empty record")
		}
	}
}
