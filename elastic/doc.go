// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package elastic decides who is a member of a group whose members change while their processes keep running: dead members
// leave, spares take their place, the others keep their order. PyTorch 2.14 can reconfigure a group
// (torch.distributed._reconfigure), and so can Go ([github.com/cohort-dist/cohort/group.Group.Reconfigure]). What PyTorch
// lacks is something that decides on the list of members.
//
// A member's loop asks for the group of the present round, trains with it until that ends, and asks again:
//
//	m, err := elastic.Join(ctx, s)
//	defer m.Close()
//	for {
//		g, err := m.Group(ctx, s) // waits; its rank and size are those of this round
//		if err != nil {
//			return err // the job has ended
//		}
//		// Take over the state of the member that is furthest, then train with g. When an operation fails, or m.Over says so: continue.
//		return m.Done(ctx) // after the last step
//	}
//
// A [Coordinator] runs in one process, over any store that the members can reach, preferably in the process that hosts the
// store. A [Member] asks it for rounds. A round is a uuid and a list of handles:
//
//  1. A member asks with its handle and waits.
//  2. When enough members have asked, the coordinator answers all of them with the same round, and they reconfigure.
//  3. A member whose group or reconfiguration fails asks again. That ends the round for all: the coordinator records the end in
//     the store, and the others ask again too, because their own operations fail or because they poll ([Member.Over]).
//  4. Members that have fallen silent are left out, and the next round begins, with a new uuid.
//  5. A member that has finished is in no other round. When all members of a round have finished, or some have and the others are lost,
//     the job ends: members that still wait are notified, because they would begin again from nothing.
//
// A coordinator that has died can be started again over the same store: see [Coordinator.Run]. Until then the present group
// continues, and members that ask wait.
//
// Members beyond the largest size are spares. When there is room for one, the round ends so that it can be taken in.
//
// # Keys
//
// Python takes part with cohort_dist.elastic (python/cohort_dist), or with a few lines of one's own (examples/reconfigure has them). These
// are the keys below the prefix (see [WithPrefix]):
//
//	members        ADD 1 gives a member its ID, plus one
//	alive/ID       ADD 1 at least once a second
//	asks           ADD 1 gives the number N of a question
//	ask/N          {"member": ID, "handle": "gloo:0:-1:0:host:port", "done": false}
//	               {"member": ID, "lost": true} from the process that started the member, when the member's process has ended
//	answer/N       {"uuid": 4294967296, "handles": [...]}, {"done": true} or {"error": "..."}; the member deletes it when it has
//	               read it. While it is there, another question of the member repeats question N, which was not answered in
//	               time; once it is deleted, another question says that the round has failed
//	over/UUID      exists when the round is over
//	end            the answer to all members when the job has ended; a member that gets no answer reads it, and asks again
//	epochs         counts coordinators: their uuids do not meet
//	record         the coordinator's last decision, for the one that is started when it dies
//	looked         the number up to which questions were read
//
// The launcher's rendezvous and this package use the same membership machine, internal/launch/launchcore.Job.
package elastic
