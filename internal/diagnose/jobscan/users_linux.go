// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// placeOf returns whose a process is and where it is. It differs from this process only for root, who can act for other users.
func placeOf(proc string, pid int) (place, error) {
	if os.Geteuid() != 0 {
		return place{}, nil
	}
	dir := filepath.Join(proc, strconv.Itoa(pid))
	o := place{uid: ownerOf(proc, pid), gid: effective(statusOf(proc, pid, "Gid"))}
	if o.uid < 0 || o.gid < 0 {
		return place{}, os.ErrNotExist
	}
	for _, text := range statusOf(proc, pid, "Groups") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return place{}, err
		}
		o.groups = append(o.groups, n)
	}
	o.network, _ = os.Readlink(filepath.Join(dir, "ns/net"))
	o.mounts, _ = os.Readlink(filepath.Join(dir, "ns/mnt"))
	network, _ := os.Readlink("/proc/self/ns/net")
	mounts, _ := os.Readlink("/proc/self/ns/mnt")
	o.inside = o.mounts != mounts
	o.differs = o.uid != 0 || o.inside || o.network != network
	return o, nil
}

// startHelper starts this program with arguments.
func startHelper(args []string) (helperProcess, error) {
	cmd := exec.Command("/proc/self/exe", args...) //nolint:gosec,noctx // this program; it ends with its standard input
	cmd.Args[0], cmd.Env = os.Args[0], []string{}
	in, err := cmd.StdinPipe()
	if err != nil {
		return helperProcess{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return helperProcess{}, err
	}
	var words bytes.Buffer
	cmd.Stderr = &words
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return helperProcess{}, err
	}
	return helperProcess{in: in, out: out, end: func() string {
		_ = cmd.Process.Kill() // it may hang where a user has led it
		_ = cmd.Wait()
		return strings.TrimSpace(words.String())
	}}, nil
}

// BecomeUser starts this program again, with other arguments, in place of this process, as the user and in the network and the mounts of
// another process, and without any capability. It returns only with an error.
func BecomeUser(pid int, args ...string) error {
	o, err := placeOf("/proc", pid)
	if err != nil {
		return err
	}
	if !o.differs {
		return fmt.Errorf("jobscan: process %d has the user of this process", pid)
	}
	program, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("jobscan: this program: %w", err)
	}
	runtime.LockOSThread() // what follows is of this thread, and so is what the program starts with
	if err := enter(pid); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return unix.Setgroups(o.groups) },
		func() error { return unix.Setresgid(o.gid, o.gid, o.gid) },
		// As root, a program would get all capabilities back.
		func() error { return unix.Prctl(unix.PR_SET_SECUREBITS, secNoRoot|secNoRootLocked, 0, 0, 0) },
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
		func() error { return unix.Setresuid(o.uid, o.uid, o.uid) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("jobscan: to become user %d: %w", o.uid, err)
		}
	}
	return execute(program, args)
}

// Bits of prctl(PR_SET_SECUREBITS).
const secNoRoot, secNoRootLocked = 1 << 0, 1 << 1

// enter moves this thread into the network and the mounts of a process, as far as they are others.
func enter(pid int) error {
	var fds []int
	for _, name := range []string{"net", "mnt"} {
		path := filepath.Join("/proc", strconv.Itoa(pid), "ns", name)
		theirs, err := os.Readlink(path)
		ours, _ := os.Readlink("/proc/self/ns/" + name)
		if err != nil || theirs == ours {
			continue // where it cannot be read, as in some containers, there is one for all
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("jobscan: namespace %s of process %d: %w", name, pid, err)
		}
		fds = append(fds, fd)
	}
	if len(fds) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("jobscan: %w", err)
	}
	for _, fd := range fds {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("jobscan: a namespace of process %d: %w", pid, err)
		}
	}
	return unix.Chdir("/")
}

// execute runs an open program in place of this process. Its path may mean nothing among the mounts of now. Where this user may not run the
// file, it is copied.
func execute(program int, args []string) error {
	err := executeFile(program, args)
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	var stat unix.Stat_t
	if failed := unix.Fstat(program, &stat); failed != nil {
		return err
	}
	copied, failed := unix.MemfdCreate("cohort", unix.MFD_CLOEXEC)
	if failed != nil {
		return err
	}
	for offset := int64(0); offset < stat.Size; {
		if _, failed := unix.Sendfile(copied, program, &offset, int(stat.Size-offset)); failed != nil {
			return err
		}
	}
	return executeFile(copied, args)
}

func executeFile(program int, args []string) error {
	argv, err := syscall.SlicePtrFromStrings(args)
	if err != nil {
		return err
	}
	var empty byte
	env := []*byte{nil}
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(program), uintptr(unsafe.Pointer(&empty)), //nolint:gosec // what it takes
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0) //nolint:gosec // as above
	return fmt.Errorf("jobscan: to run this program: %w", errno)
}
