// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// connect makes the connections to all ranks, none of which waits for another: if one is stopped, the others reach each other, and
// a rank that has all its connections counts heartbeats.
func (j *joining) connect(ctx context.Context) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, j.config.Rank+1) // by the rank that was dialled, and the last of those that dial
	var tasks sync.WaitGroup
	var once sync.Once
	var first error
	task := func(i int, run func() error) {
		tasks.Go(func() {
			if errs[i] = run(); errs[i] != nil {
				once.Do(func() { first = errs[i] })
				cancel()
			}
		})
	}
	for rank := range j.config.Rank {
		task(rank, func() error { return j.dial(limited, rank) })
	}
	if j.listener != nil {
		task(j.config.Rank, func() error { return j.accept(limited, j.listener) })
	}
	failpoint.At("shm.join.tasks")
	tasks.Wait()
	if ctx.Err() == nil {
		return first // which has ended the others
	}
	return cmp.Or(errs...)
}

// listen opens a socket for the ranks above and publishes its address with a secret.
func (j *joining) listen(ctx context.Context) (*net.UnixListener, error) {
	const op = "shm: listen"
	var name [tokenSize]byte
	_, _ = rand.Read(j.token[:])
	_, _ = rand.Read(name[:])
	address := "@cohort-shm-" + hex.EncodeToString(name[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil { // no abstract sockets: a name in a folder that only this user can enter
		if j.folder, err = os.MkdirTemp("", "cohort-shm-"); err != nil {
			return nil, cohort.Wrap(op, cohort.Unavailable, err)
		}
		address = filepath.Join(j.folder, "s")
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"}); err != nil {
			return nil, cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	failpoint.At("shm.join.publish")
	value := addressField + hex.EncodeToString(j.token[:]) + " " + address
	if err := j.config.Exchange.Set(ctx, j.key(j.config.Rank), []byte(value)); err != nil {
		_ = l.Close()
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	return l, nil
}

// dial connects to a lower rank and, at rank 0, receives the segment.
func (j *joining) dial(ctx context.Context, rank int) error {
	const op = "shm: dial"
	fail := func(code cohort.Code, err error) error {
		e := cohort.Wrap(op, code, err)
		e.Rank = cohort.Rank(rank)
		return e
	}
	failpoint.At("shm.join.fetch")
	value, err := j.config.Exchange.Get(ctx, j.key(rank))
	if err != nil {
		return fail(cohort.Unavailable, err)
	}
	if text, ok := strings.CutPrefix(string(value), errorPrefix); ok {
		return fail(cohort.Unavailable, errors.New(text))
	}
	rest, ok := strings.CutPrefix(string(value), addressField)
	tokenText, address, ok2 := strings.Cut(rest, " ")
	token, err := hex.DecodeString(tokenText)
	if !ok || !ok2 || err != nil || len(token) != tokenSize {
		return fail(cohort.Protocol, fmt.Errorf("key %q does not hold an address", j.key(rank)))
	}
	failpoint.At("shm.join.dial")
	conn, err := ctxdial.Dial(ctx, &net.Dialer{}, "unix", address)
	if err != nil {
		return fail(cohort.Unavailable, fmt.Errorf("%w (ranks that share memory must run on one host and in one network namespace)", err))
	}
	u := conn.(*net.UnixConn) //nolint:errcheck // a unix dial returns one
	j.conns[rank] = u
	if err = j.sameUser(u); err != nil { // it would give this process memory of its own making
		return fail(cohort.Unavailable, err)
	}
	release := limitIO(ctx, u)
	defer release()
	hello := binary.LittleEndian.AppendUint64(nil, segmentMagic)
	hello = binary.LittleEndian.AppendUint32(hello, uint32(j.config.Rank)) //nolint:gosec // below MaxRanks
	hello = append(hello, token...)
	failpoint.At("shm.join.hello")
	if _, err = u.Write(hello); err != nil {
		return fail(cohort.Unavailable, err)
	}
	failpoint.At("shm.join.welcome")
	file, err := receiveWelcome(u)
	if err != nil {
		return fail(cohort.Unavailable, err)
	}
	if rank != 0 {
		if file != nil { // only rank 0 has something to send
			_ = file.Close()
		}
		return nil
	}
	if file == nil {
		return fail(cohort.Protocol, errors.New("rank 0 sent no segment"))
	}
	j.file = file
	if j.seg, err = openSegment(file, j.config.Size); err != nil {
		return err
	}
	j.beat()
	return nil
}

// receiveWelcome reads the reply to a hello, with the descriptor that it may carry.
func receiveWelcome(u *net.UnixConn) (*os.File, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := u.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, err
	}
	var file *os.File
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for i := range messages {
			fds, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				continue
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				if file != nil {
					_ = file.Close()
				}
				file = os.NewFile(uintptr(fd), "cohort-shm")
			}
		}
	}
	if n != 1 || b[0] != welcome {
		if file != nil {
			_ = file.Close()
		}
		return nil, errors.New("the rank refused this one")
	}
	return file, nil
}

// limitIO ends a connection's reads and writes with ctx, until release is called. It does not give the connection the deadline
// of ctx: a read that ended first would look like a failure of the peer.
func limitIO(ctx context.Context, u *net.UnixConn) (release func()) {
	stop := context.AfterFunc(ctx, func() { _ = u.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if stop() {
			_ = u.SetDeadline(time.Time{})
		}
	}
}

// accept takes one connection of every higher rank. Other connections are refused.
func (j *joining) accept(ctx context.Context, l *net.UnixListener) error {
	const op = "shm: accept"
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for missing := j.config.Size - 1 - j.config.Rank; missing > 0; {
		failpoint.At("shm.join.accept")
		u, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				_ = u.Close()
			}
			return j.missing(ctx, op)
		}
		if err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
		rank, err := j.greet(ctx, u)
		if err != nil {
			_ = u.Close()
			continue
		}
		j.conns[rank] = u
		missing--
	}
	return nil
}

func (j *joining) missing(ctx context.Context, op string) error {
	var ranks []int
	for r := j.config.Rank + 1; r < j.config.Size; r++ {
		if j.conns[r] == nil {
			ranks = append(ranks, r)
		}
	}
	e := cohort.Ended(ctx, op)
	if len(ranks) > 0 {
		e.Rank, e.Detail = cohort.Rank(ranks[0]), fmt.Sprintf("ranks %v did not connect", ranks)
	}
	return e
}

// greet checks a hello and answers it, with the segment at rank 0.
func (j *joining) greet(ctx context.Context, u *net.UnixConn) (rank int, err error) {
	limit := helloLimit
	if h := j.config.HeartbeatLimit; h > 0 { // the next connections must not count as stopped meanwhile
		limit = min(limit, h/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer limitIO(ctx, u)()
	if err := j.sameUser(u); err != nil {
		return 0, err
	}
	failpoint.At("shm.join.greet")
	var hello [helloSize]byte
	if _, err := io.ReadFull(u, hello[:]); err != nil {
		return 0, err
	}
	r := int64(binary.LittleEndian.Uint32(hello[8:]))
	if binary.LittleEndian.Uint64(hello[:]) != segmentMagic || subtle.ConstantTimeCompare(hello[12:], j.token[:]) != 1 {
		return 0, errors.New("not a rank of this group")
	}
	if r <= int64(j.config.Rank) || r >= int64(j.config.Size) || j.conns[r] != nil {
		return 0, fmt.Errorf("rank %d is not expected", r)
	}
	var rights []byte
	if j.config.Rank == 0 {
		rights = unix.UnixRights(int(j.file.Fd()))
	}
	failpoint.At("shm.join.answer")
	if _, _, err := u.WriteMsgUnix([]byte{welcome}, rights, nil); err != nil {
		return 0, err
	}
	return int(r), nil
}

// sameUser returns an error if the socket at the other end was made by another user, who is not root.
func (j *joining) sameUser(u *net.UnixConn) error {
	uid, err := j.userOf(u)
	if err == nil && uid != os.Geteuid() && uid != 0 {
		err = fmt.Errorf("the socket belongs to user %d, and this process to user %d: ranks that share memory must have one user", uid,
			os.Geteuid())
	}
	return err
}

// peerUID returns the user of the process that made the connection, as the kernel knows it.
func peerUID(u *net.UnixConn) (int, error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Uid), nil
}
