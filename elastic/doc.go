// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package elastic decides who is a member of a group whose members change, while the processes go on running: dead ranks out,
// spares in, the others keep their order. PyTorch 2.14 can reconfigure a group (torch.distributed._reconfigure) and so can Go
// ([github.com/cohort-dist/cohort/group.Group.Reconfigure]); what PyTorch does not have is somebody who says with which list.
//
// A [Coordinator] runs in one process, over any store that the members reach, best in the process that hosts the store. A [Member] asks it
// for rounds. A round is a uuid and a list of handles:
//
//  1. A member asks with its handle and waits.
//  2. When enough members have asked, the coordinator answers all of them with the same round, and they reconfigure.
//  3. A member whose group or reconfiguration fails asks again. That ends the round for all: the coordinator says so in the store, and
//     the others ask again too, because their own operations fail or because they look ([Member.Over]).
//  4. Members that are not heard of are left out, and the next round begins, with a new uuid.
//
// A coordinator that dies can be started again, over the same store: see [Coordinator.Run]. Until then a group that trains goes on,
// and members that ask wait.
//
// Ranks that ask beyond the largest size are spares. One that comes when there is room ends the round, so that it is taken in.
//
// # Keys
//
// Python takes part with a few lines (examples/reconfigure has them). Under the prefix, "cohort/elastic" unless told otherwise:
//
//	members        ADD 1 gives a member its ID, plus one
//	alive/ID       ADD 1 at least once a second
//	asks           ADD 1 gives the number N of a question
//	ask/N          {"member": ID, "handle": "gloo:0:-1:0:host:port", "done": false}
//	               {"member": ID, "lost": true} of whoever has started the member and sees that its process has ended
//	answer/N       {"uuid": 4294967296, "handles": [...]}, {"done": true} or {"error": "..."}; the member deletes it when it has
//	               read it. While it is there, another question of the member repeats question N, which was not answered in
//	               time; once it is gone, another question says that the round has failed
//	over/UUID      exists when the round is over
//	end            the answer to everybody when the job has ended; a member that is not answered looks, and asks again
//	epochs         counts coordinators: their uuids do not meet
//	record         the coordinator's last decision, for the one that is started when it dies
//	looked         the number up to which questions were looked at
//
// The launcher's rendezvous and this package use the same membership machine, internal/launchcore.Job.
package elastic
