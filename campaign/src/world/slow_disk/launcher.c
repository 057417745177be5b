/* Starts a program whose disk can become slow: slow-disk CONTROL PROGRAM ARGUMENTS...

   Each call that waits for the disk is held up for the milliseconds that CONTROL says, and is then made. The kernel
   holds it up for this program and its children (a filter of system calls with a listener), so it works for programs
   without the C library, too, and for any user. CONTROL is mapped: the milliseconds, and how many calls were held up. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

struct control {
    volatile int64_t delay;
    volatile int64_t held_up;
};

/* More calls at one time than this are not held up. */
enum { MOST = 1024 };

/* The pause between two looks at the calls that are held up, in milliseconds. */
enum { PAUSE = 5 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int filter(void) {
    struct sock_filter instructions[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_msync, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sync_file_range, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    struct sock_fprog program = {sizeof instructions / sizeof *instructions, instructions};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no new privileges");
    /* Without the second flag, which kernels before 5.19 lack, each signal begins the delay of a call again. */
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
    if (listener < 0 && errno == EINVAL)
        listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    if (listener < 0) fail("filter of system calls");
    return (int)listener;
}

/* A message that carries one descriptor, beside the one byte that a message needs. */
struct parcel {
    char byte;
    struct iovec data;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message;
};

static struct msghdr *wrap(struct parcel *parcel) {
    memset(parcel, 0, sizeof *parcel);
    parcel->data = (struct iovec){&parcel->byte, 1};
    parcel->message.msg_iov = &parcel->data;
    parcel->message.msg_iovlen = 1;
    parcel->message.msg_control = &parcel->control;
    parcel->message.msg_controllen = sizeof parcel->control;
    return &parcel->message;
}

static void send_descriptor(int socket, int descriptor) {
    struct parcel parcel;
    struct msghdr *message = wrap(&parcel);
    parcel.control.header.cmsg_level = SOL_SOCKET;
    parcel.control.header.cmsg_type = SCM_RIGHTS;
    parcel.control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&parcel.control.header), &descriptor, sizeof descriptor);
    if (sendmsg(socket, message, 0) != 1) fail("send the listener");
}

static int receive_descriptor(int socket) {
    struct parcel parcel;
    struct msghdr *message = wrap(&parcel);
    /* The program has ended before it had a filter. */
    if (recvmsg(socket, message, 0) != 1 || message->msg_controllen == 0) exit(0);
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(&parcel.control.header), sizeof descriptor);
    return descriptor;
}

/* Lets a call be made. It is gone if its process was killed. */
static void answer(int listener, uint64_t id) {
    struct seccomp_notif_resp response = {0};
    response.id = id;
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static void hold_up(int listener, struct control *control) {
    static struct {
        uint64_t id;
        int64_t since;
    } held[MOST];
    int count = 0;
    for (;;) {
        struct pollfd ready = {listener, POLLIN, 0};
        poll(&ready, 1, count > 0 ? PAUSE : -1);
        /* The last process with the filter has ended. */
        if (ready.revents & (POLLHUP | POLLERR | POLLNVAL)) exit(0);
        if (ready.revents & POLLIN) {
            /* The kernel wants zeros, and may know more fields than this program does. */
            union {
                struct seccomp_notif call;
                char room[512];
            } received;
            memset(&received, 0, sizeof received);
            if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &received) == 0) {
                if (control->delay == 0 || count == MOST) {
                    answer(listener, received.call.id);
                } else {
                    held[count].id = received.call.id;
                    held[count++].since = now();
                    control->held_up++;
                }
            }
        }
        /* The delay may have become another one meanwhile. */
        for (int at = 0; at < count;) {
            if (now() - held[at].since < control->delay) {
                at++;
                continue;
            }
            answer(listener, held[at].id);
            held[at] = held[--count];
        }
    }
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: slow-disk CONTROL PROGRAM ARGUMENTS...\n");
        return 64;
    }
    int file = open(arguments[1], O_RDWR | O_CLOEXEC);
    if (file < 0) fail(arguments[1]);
    struct control *control =
        mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (control == MAP_FAILED) fail("map the control file");
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        /* A child of the first process, and none of a server that waits for its children. */
        if (fork() != 0) _exit(0);
        /* Nobody waits for the end of a pipe that only this process still has. */
        dup2(pair[1], 0);
        for (int descriptor = 1; descriptor < 1024; descriptor++) close(descriptor);
        int listener = receive_descriptor(0);
        hold_up(listener, control);
    }
    waitpid(child, NULL, 0);
    close(pair[1]);
    send_descriptor(pair[0], filter());
    execvp(arguments[2], arguments + 2);
    fail(arguments[2]);
}
