// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rssUnit is the unit of Rusage.Maxrss.
const rssUnit = 1024

// adopt makes this process the new parent of all its descendants that lose theirs.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// keepFiles keeps what the launcher has inherited, such as the lock of a shell script, from the workers, as torchrun does.
func keepFiles() {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// workerAttr puts a worker into its own session, as torchrun does, and has it killed when the supervisor dies.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// onCPUs starts a process that may run on these processors alone, all if there are none: a process inherits them from the thread that
// starts it. The caller is locked to its thread.
func onCPUs(cpus []int, start func() (int, error)) (int, error) {
	if len(cpus) == 0 {
		return start()
	}
	var own, set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	err := unix.SchedGetaffinity(0, &own)
	if err == nil {
		err = unix.SchedSetaffinity(0, &set)
	}
	if err != nil {
		return 0, fmt.Errorf("to bind it to processors %v: %w", cpus, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &own) }()
	return start()
}

// waitPeek asks whether there is a child, without waiting and without taking it in.
func waitPeek() (int, error) {
	var info unix.Siginfo
	return 0, unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
}

// descendants lists the processes below root, without those in spare and without what is below those.
func descendants(root int, spare map[int]int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, zombie, ok := parentOf(pid); ok && !zombie {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := []int{root}; len(next) > 0; {
		pid := next[0]
		next = next[1:]
		for _, child := range children[pid] {
			if _, spared := spare[child]; spared {
				continue
			}
			all = append(all, child)
			next = append(next, child)
		}
	}
	return all
}

// surestScan is the last pause between two scans for processes whose environment cannot be read yet.
const surestScan = 256 * time.Millisecond

// started lists the processes that belong to sessions of workers or have one of the marks in their environment, and
// what is below those. It returns none only if two scans found none: one can miss a process that is being forked, and one that is
// executing a program has no environment for a moment.
func started(workers map[int]bool, marks []string) []int {
	for pause := time.Millisecond; ; pause *= 2 {
		found, unsure := scan(workers, marks)
		if len(found) > 0 || !unsure && pause > time.Millisecond || pause > surestScan {
			return slices.Sorted(maps.Keys(found))
		}
		time.Sleep(pause) //nolint:forbidigo // the kernel does not report the end of an execve of another process
	}
}

// scan looks once. Unsure says that some processes have no environment.
func scan(workers map[int]bool, marks []string) (found map[int]bool, unsure bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, false
	}
	found = map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if _, zombie, ok := parentOf(pid); !ok || zombie {
			continue
		}
		session, err := unix.Getsid(pid)
		isMarked, empty := marked(pid, marks)
		unsure = unsure || empty
		if err == nil && workers[session] || isMarked {
			found[pid] = true
			for _, below := range descendants(pid, nil) {
				found[below] = true
			}
		}
	}
	return found, unsure
}

// marked reports whether a process was started with one of the variables. Empty says that it is a program without environment.
func marked(pid int, marks []string) (is, empty bool) {
	folder := "/proc/" + strconv.Itoa(pid)
	environ, err := os.ReadFile(folder + "/environ") //nolint:gosec // of the kernel
	if err != nil {
		return false, false
	}
	for _, m := range marks {
		if bytes.HasPrefix(environ, []byte(m+"\x00")) || bytes.Contains(environ, []byte("\x00"+m+"\x00")) {
			return true, false
		}
	}
	if len(environ) > 0 {
		return false, false
	}
	_, err = os.Readlink(folder + "/exe") // a thread of the kernel has none
	return false, err == nil
}

// parentOf reads the parent from /proc/PID/stat: "pid (name) state parent ...", where the name may hold anything.
func parentOf(pid int) (parent int, zombie, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false, false
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 2 {
		return 0, false, false
	}
	parent, err = strconv.Atoi(string(f[1]))
	return parent, f[0][0] == 'Z' || f[0][0] == 'X', err == nil
}
